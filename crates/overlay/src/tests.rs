//! Figures of the source, made again.

use super::*;

fn source(degree: usize, direct: usize) -> Simulation {
    let traffic = Traffic { weights_percent: THESIS_WEIGHTS_PERCENT.to_vec(), ..Traffic::default() };
    Simulation { pool: Pool::thesis(direct), traffic, ..Simulation::new(Shape::Original { degree }, 60, 1) }
}

#[test]
fn explore() -> Result<()> {
    for (degree, direct) in [(12, 0), (10, 0), (10, 2), (9, 3)] {
        let report = source(degree, direct).run(None)?;
        println!("orig {degree}+{direct} {:.3} {:.4} s re {} q {}", report.forwards_per_message, report.seconds, report.reconnections, report.queued_most);
    }
    let ways = [(Through::Own, None), (Through::All, None), (Through::Own, Some(24)), (Through::All, Some(24)), (Through::Own, Some(12)), (Through::All, Some(12))];
    for sockets in [12, 24] {
        for skew in [true, false] {
            let mut traffic = Traffic::default();
            if skew { traffic.weights_percent = THESIS_WEIGHTS_PERCENT.to_vec() }
            let demand = traffic.demand(60);
            let base = Simulation { traffic, ..Simulation::new(circulant(60, sockets, 4000, 1)?, 60, 1) };
            for ties in [simulate::Ties::Random, simulate::Ties::ShortestQueue] {
            let base = Simulation { ties, ..base.clone() };
            let report = base.run(None)?;
            println!("{ties:?} circ {sockets} skew {skew} {:.3} {:.4} s q {} node6 fwd {} {:?}", report.forwards_per_message, report.seconds, report.queued_most, report.per_node[6].forwarded, report.per_node[6].latency.p50_seconds);
            for (through, accepted) in ways {
                let pool = Pool::new(0, accepted);
                let split = split(sockets, &demand, &pool, through, 4000, 1)?;
                let pool = Pool { opened_max: split.direct, ..pool };
                let report = Simulation { shape: split.shape, pool, through, ..base.clone() }.run(Some(&demand))?;
                println!("   {through:?} acc {accepted:?} split {}+{} pred {:.3} : {:.3} {:.4} s re {} q {} node6 fwd {} sock {}", split.topology_sockets, split.direct, split.forwards_per_message, report.forwards_per_message, report.seconds, report.reconnections, report.queued_most, report.per_node[6].forwarded, report.per_node.iter().map(|n| n.sockets_max).max().unwrap());
            }}
        }
    }
    Ok(())
}

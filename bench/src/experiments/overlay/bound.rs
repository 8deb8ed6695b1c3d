//! The fewest forwards that connections of given degrees allow: a linear program, by its dual.
//!
//! With x the part of the time in which two nodes are connected, at most 1 and for each node at most its sockets in
//! all, traffic between the two is forwarded at least once for the rest of the time. The most traffic that is not
//! forwarded is the maximum of the sum of w x over all pairs, w being the traffic of a pair both ways. By weak duality it
//! is at most
//!
//! ```text
//! sum over nodes: sockets y  +  sum over pairs: max(0, w - y of one - y of the other)
//! ```
//!
//! for any prices y >= 0 of a socket at each node, so that any y gives a bound; descent finds prices at which it is nearly
//! the maximum itself. Connections that stay, or that change without regard to the messages of the moment, forward at
//! least the rest; connections that follow the messages of the moment can do better.

use lightship_overlay::TrafficMatrix;

/// Rounds of the descent. Each changes the prices of all nodes at once.
const ROUNDS: usize = 600;

/// Forwards for each message of `demand`, at least, if node i has at most `sockets[i]` connections, each used both ways.
pub(super) fn forwards_min(demand: &TrafficMatrix, sockets: &[usize]) -> f64 {
    let nodes = sockets.len();
    let mut traffic = vec![vec![0.0; nodes]; nodes];
    let total = demand.total_bytes();
    for (from, to, bytes) in demand.pairs() {
        traffic[from][to] += bytes / total;
        traffic[to][from] += bytes / total;
    }
    let mut prices = vec![0.0; nodes];
    let mut best = f64::INFINITY;
    for round in 0..ROUNDS {
        best = best.min(dual(&traffic, sockets, &prices));
        // Towards the price at which as many pairs are worth it as the node has sockets; half of the way, because both
        // ends of a pair move, and less later, because prices that change together can swing.
        let step = 0.5 / (1.0 + round as f64 / 200.0);
        let before = prices.clone();
        for node in 0..nodes {
            let mut worth: Vec<f64> = (0..nodes)
                .filter(|other| *other != node)
                .map(|other| traffic[node][other] - before[other])
                .collect();
            worth.sort_by(|a, b| b.total_cmp(a));
            let wanted = worth.get(sockets[node]).copied().unwrap_or(0.0).max(0.0);
            prices[node] += step * (wanted - before[node]);
        }
    }
    (1.0 - best.min(1.0)).max(0.0)
}

/// The value of the dual at these prices: no less than the traffic that links can carry.
fn dual(traffic: &[Vec<f64>], sockets: &[usize], prices: &[f64]) -> f64 {
    let paid: f64 = sockets.iter().zip(prices).map(|(sockets, price)| *sockets as f64 * price).sum();
    let pairs = (0..prices.len()).flat_map(|a| (a + 1..prices.len()).map(move |b| (a, b)));
    paid + pairs.map(|(a, b)| (traffic[a][b] - prices[a] - prices[b]).max(0.0)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use lightship_overlay::Traffic;

    use super::*;

    #[track_caller]
    fn about(found: f64, expected: f64) {
        assert!((found - expected).abs() < 2e-3, "{found}, expected {expected}");
    }

    #[test]
    fn uniform_traffic_is_forwarded_unless_there_is_a_link() {
        let demand = Traffic::default().demand(10);
        for degree in 1..=9 {
            about(forwards_min(&demand, &[degree; 10]), 1.0 - degree as f64 / 9.0);
        }
    }

    #[test]
    fn sockets_are_best_where_the_traffic_is() {
        let mut demand = TrafficMatrix::new(4);
        [(0, 1, 6.0), (1, 2, 3.0), (3, 0, 1.0)].into_iter().for_each(|(a, b, bytes)| demand.add(a, b, bytes));
        // One link for each node: 0 to 1, and 2 to 3, which has no traffic.
        about(forwards_min(&demand, &[1; 4]), 0.4);
        about(forwards_min(&demand, &[2, 2, 1, 1]), 0.0);
    }

    #[test]
    fn no_network_has_fewer_forwards() {
        // A circulant of 60 nodes with 24 links each forwards everything but what its links carry.
        let demand = Traffic::default().demand(60);
        about(forwards_min(&demand, &[24; 60]), 1.0 - 24.0 / 59.0);
    }
}

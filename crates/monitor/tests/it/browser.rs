//! The page in a browser: it loads without complaints, shows hosts and queries, and the verdict of a query.

use lightship_monitor::http::HttpOptions;

use crate::client::Server;
use crate::devtools::Browser;

const READY: &str = "document.documentElement.dataset.ready === 'true'";

async fn on_page(width: u32, test: impl FnOnce(&mut Browser) + Send + 'static) {
    on_page_at("", width, test).await;
}

async fn on_page_at(hash: &'static str, width: u32, test: impl FnOnce(&mut Browser) + Send + 'static) {
    let server = Server::start(HttpOptions::new("test")).await;
    let url = format!("http://{}/{hash}", server.address);
    let work = move || {
        let mut browser = Browser::start(width, 900);
        browser.open(&url);
        browser.wait_for(READY);
        test(&mut browser);
        assert_eq!(browser.complaints, [""; 0]);
    };
    tokio::task::spawn_blocking(work).await.unwrap();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_click_on_a_query_shows_its_verdict() {
    let test = |browser: &mut Browser| {
        assert_eq!(browser.evaluate("document.querySelectorAll('#hosts-rows tr').length"), 4);
        assert_eq!(browser.evaluate("document.querySelectorAll('#charts canvas').length"), 4);
        let first = "document.querySelector('[data-query=\"0001-00\"]')";
        browser.wait_for(&format!("{first} !== null"));
        assert_eq!(browser.evaluate("document.querySelector('#detail').hidden"), true);
        browser.evaluate(&format!("{first}.querySelector('button').click()"));
        browser.wait_for("document.querySelector('#detail .sentence') !== null");
        let sentence = browser.evaluate("document.querySelector('#detail .sentence').textContent");
        assert!(sentence.as_str().unwrap().starts_with("Limited by the processors of node2"), "{sentence}");
        let parts = browser.evaluate("document.querySelectorAll('#detail .division tbody tr').length");
        assert!(parts.as_u64().unwrap() >= 3, "{parts}");
        // A label with markup is text.
        assert_eq!(browser.evaluate("document.querySelectorAll('main b').length"), 0);
        assert_eq!(
            browser.evaluate("document.querySelector('#queries-rows').textContent.includes('<b>export</b>')"),
            true
        );
        browser.evaluate("document.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape' }))");
        browser.wait_for("document.querySelector('#detail').hidden");
    };
    on_page(1280, test).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_to_a_query_that_was_cut_shows_the_page() {
    // The page is ready, which `on_page_at` waits for.
    on_page_at("#query=%E0", 1280, |browser| {
        assert_eq!(browser.evaluate("document.querySelector('#live').textContent"), "live");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_is_forgotten_between_two_requests_is_left_out() {
    let test = |browser: &mut Browser| {
        browser.evaluate(
            "window.fetch = ((before) => (path, options) => path.includes('host=node1&') \
             ? Promise.resolve(new Response('{}', { status: 404 })) : before(path, options))(window.fetch)",
        );
        browser.wait_for("document.querySelectorAll('#charts canvas').length === 3");
        assert_eq!(browser.evaluate("document.querySelector('#live').textContent"), "live");
    };
    on_page(1280, test).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_traffic_of_all_hosts_is_stacked_by_direction() {
    let test = |browser: &mut Browser| {
        assert_eq!(browser.evaluate("document.querySelectorAll('#traffic canvas').length"), 0);
        let button =
            "[...document.querySelectorAll('#groups button')].find((b) => b.textContent === 'Network')";
        browser.evaluate(&format!("{button}.click()"));
        browser.wait_for("document.querySelectorAll('#traffic canvas').length === 2");
        let captions = browser.evaluate(
            "[...document.querySelectorAll('#traffic figcaption')].map((c) => c.textContent).join()",
        );
        assert_eq!(captions, "Received by all hosts,Sent by all hosts");
        // Each has the time and all hosts in its legend.
        assert_eq!(browser.evaluate("document.querySelectorAll('#traffic .u-series').length"), 2 * 5);
    };
    on_page(1280, test).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_narrow_screen_needs_no_scrolling_to_the_side() {
    let test = |browser: &mut Browser| {
        for group in ["Disk", "Network", "Memory", "Pressure"] {
            let button = format!(
                "[...document.querySelectorAll('#groups button')].find((b) => b.textContent === '{group}')"
            );
            browser.evaluate(&format!("{button}.click()"));
            browser.wait_for(&format!("{button}.ariaPressed === 'true'"));
        }
        assert_eq!(browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), true);
    };
    on_page(390, test).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_that_is_shown_is_chosen_by_keyboard() {
    let test = |browser: &mut Browser| {
        let shown = |browser: &mut Browser| {
            let ends = "['from_ns', 'to_ns'].map((end) => Number(new URL(document.querySelector('#trace').href).searchParams.get(end)))";
            let ends = browser.evaluate(ends);
            (ends[0].as_f64().unwrap(), ends[1].as_f64().unwrap())
        };
        let press = |browser: &mut Browser, name: &str| {
            let before = shown(browser);
            browser.evaluate(&format!("document.querySelector('#moves [aria-label=\"{name}\"]').focus()"));
            browser.press_enter();
            browser.wait_for(&format!(
                "!document.querySelector('#trace').href.endsWith('from_ns={}&to_ns={}')",
                before.0, before.1
            ));
            (before, shown(browser))
        };
        // First, so that the page does not move with the time.
        press(browser, "Zoom in");
        let (before, after) = press(browser, "Zoom in");
        let part = (after.1 - after.0) / (before.1 - before.0);
        assert!((0.49..0.51).contains(&part), "{before:?} {after:?}");
        assert!(after.0 >= before.0 && after.1 <= before.1, "{before:?} {after:?}");
        let (before, after) = press(browser, "Earlier");
        assert!(after.0 < before.0 && after.1 < before.1, "{before:?} {after:?}");
        let (before, after) = press(browser, "Later");
        assert!(after.0 > before.0 && after.1 > before.1, "{before:?} {after:?}");
        let (before, after) = press(browser, "Zoom out");
        assert!(after.1 - after.0 > before.1 - before.0, "{before:?} {after:?}");
        assert_eq!(browser.evaluate("document.activeElement.title"), "Zoom out");
    };
    on_page(1280, test).await;
}

/// Pictures for `docs/guide`, which are written there if `LIGHTSHIP_PICTURES` is set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pictures_of_the_page_can_be_taken_in_both_colours() {
    for (name, width, height, colours, place) in [
        ("hosts", 1360, 760, "light", "hosts"),
        ("query", 1280, 960, "light", "timelines"),
        ("scaling", 1280, 640, "dark", "scaling"),
        ("narrow", 390, 844, "dark", "timelines"),
    ] {
        let test = move |browser: &mut Browser| {
            browser.resize(width, height);
            browser.prefer_colours(colours);
            browser.leave("location.reload()");
            browser.wait_for(READY);
            if name != "hosts" {
                browser.evaluate("document.querySelector('[data-query=\"0001-00\"] button').click()");
                browser.wait_for("document.querySelector('#detail .sentence') !== null");
            }
            browser.evaluate(&format!(
                "document.getElementById('{place}').scrollIntoView({{ behavior: 'instant' }})"
            ));
            let picture = browser.picture();
            assert!(picture.starts_with(b"\x89PNG") && picture.len() > 10_000, "{} bytes", picture.len());
            if std::env::var_os("LIGHTSHIP_PICTURES").is_some() {
                let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide");
                std::fs::write(format!("{folder}/usage-{name}.png"), picture).unwrap();
            }
        };
        on_page(width, test).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_enter_a_token_in_the_form() {
    let options = HttpOptions { tokens: vec!["secret".into()], ..HttpOptions::new("test") };
    let server = Server::start(options).await;
    let url = format!("http://{}/", server.address);
    let work = move || {
        let mut browser = Browser::start(1280, 900);
        browser.open(&url);
        browser.wait_for("document.querySelector('#token') !== null");
        let enter =
            "document.querySelector('#token').value = 'secret'; document.querySelector('form').submit()";
        browser.leave(enter);
        assert_eq!(browser.evaluate("location.pathname"), "/");
        browser.wait_for(READY);
        assert_eq!(browser.evaluate("document.cookie"), "", "scripts can't read the session");
    };
    tokio::task::spawn_blocking(work).await.unwrap();
    server.stop().await;
}

//! A browser without a window, driven over the DevTools protocol by a pipe.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

/// Where Debian and others put it.
const PROGRAMS: [&str; 3] = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
/// The longest wait for a message of the browser: its start takes a few seconds on a slow machine.
const WAIT: Duration = Duration::from_secs(120);

pub(crate) struct Browser {
    child: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    last: u64,
    session: Option<String>,
    /// The documents that were loaded.
    loaded: Vec<String>,
    /// What the page wrote to the console, errors, and violations of its policy.
    pub(crate) complaints: Vec<String>,
    _folder: tempfile::TempDir,
}

impl Browser {
    /// A browser with an empty page of this size.
    pub(crate) fn start(width: u32, height: u32) -> Self {
        let program = PROGRAMS.iter().find(|path| std::path::Path::new(path).exists()).expect(
            "this test needs Chromium: run scripts/test-servers.sh as root, or `apt-get install chromium`",
        );
        let folder = tempfile::tempdir().unwrap();
        // The protocol's pipe is descriptors 3 and 4 of the browser.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", program])
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--disable-dev-shm-usage", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", folder.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while output.read_until(0, &mut message).is_ok_and(|bytes| bytes > 0) {
                message.pop();
                if sender.send(serde_json::from_slice(&message).unwrap()).is_err() {
                    return;
                }
                message.clear();
            }
        });
        let complaints = Vec::new();
        let mut this = Self {
            child,
            input,
            messages,
            last: 0,
            session: None,
            loaded: Vec::new(),
            complaints,
            _folder: folder,
        };
        let target = this.call("Target.createTarget", json!({ "url": "about:blank" }));
        let target = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = this.call("Target.attachToTarget", target);
        this.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Runtime.enable", "Log.enable", "Page.enable"] {
            this.call(domain, json!({}));
        }
        this.call("Page.setLifecycleEventsEnabled", json!({ "enabled": true }));
        this.resize(width, height);
        this
    }

    /// Gives the page another size.
    pub(crate) fn resize(&mut self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Opens a page, and waits until it is loaded.
    pub(crate) fn open(&mut self, url: &str) {
        let document = self.call("Page.navigate", json!({ "url": url }))["loaderId"].clone();
        while !self.loaded.iter().any(|loaded| document == loaded.as_str()) {
            self.receive();
        }
    }

    /// Does what leads to another page, and waits until that is loaded.
    pub(crate) fn leave(&mut self, expression: &str) {
        let before = self.loaded.len();
        self.evaluate(expression);
        while self.loaded.len() == before {
            self.receive();
        }
    }

    /// The value of an expression; of a promise, what it becomes.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let parameters = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let result = self.call("Runtime.evaluate", parameters);
        assert!(result.get("exceptionDetails").is_none(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Presses and releases the Enter key.
    pub(crate) fn press_enter(&mut self) {
        for (kind, text) in [("keyDown", "\r"), ("keyUp", "")] {
            let key = json!({ "type": kind, "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": text });
            self.call("Input.dispatchKeyEvent", key);
        }
    }

    /// Makes dark colours the preference of the system, or light ones, for pages that are opened later.
    pub(crate) fn prefer_colours(&mut self, scheme: &str) {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", features);
    }

    /// A picture of what is seen, as PNG.
    pub(crate) fn picture(&mut self) -> Vec<u8> {
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))");
        let taken =
            self.call("Page.captureScreenshot", json!({ "format": "png", "optimizeForSpeed": false }));
        decoded(taken["data"].as_str().unwrap())
    }

    /// Waits until a condition on the document is true.
    pub(crate) fn wait_for(&mut self, condition: &str) {
        self.evaluate(&format!(
            "new Promise((done) => {{
                const check = () => {{ if ({condition}) done(true); }};
                new MutationObserver(check).observe(document, {{ subtree: true, childList: true, attributes: true }});
                check();
            }})"
        ));
    }

    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.input.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let message = self.receive();
            if message["id"] == self.last {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].clone();
            }
        }
    }

    fn receive(&mut self) -> Value {
        let message = self.messages.recv_timeout(WAIT).expect("the browser does not answer");
        let parameters = &message["params"];
        match message["method"].as_str() {
            Some("Runtime.exceptionThrown" | "Runtime.consoleAPICalled" | "Log.entryAdded") => {
                self.complaints.push(parameters.to_string());
            }
            Some("Page.lifecycleEvent") if parameters["name"] == "load" => {
                self.loaded.extend(parameters["loaderId"].as_str().map(str::to_owned));
            }
            _ => {}
        }
        message
    }
}

/// The bytes of a text in base64 (RFC 4648).
fn decoded(text: &str) -> Vec<u8> {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let value = |digit: u8| digits.iter().position(|known| *known == digit).unwrap() as u32;
    let mut bytes = Vec::new();
    for four in text.trim_end_matches('=').as_bytes().chunks(4) {
        let bits = four.iter().fold(0, |bits, digit| bits << 6 | value(*digit)) << (6 * (4 - four.len()));
        bytes.extend(&bits.to_be_bytes()[1..four.len()]);
    }
    bytes
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

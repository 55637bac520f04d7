//! A headless browser, driven over its DevTools by a pipe: what it is told, what it answers, what its console says. It dies
//! with its rig. Nothing of it looks at our code.

use super::process::becomes_readable;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long the browser may take for anything, its start included, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// The browser's two pipes are its descriptors 3 and 4.
const WITH_PIPES: &str = r#"exec "$@" 3<&0 4>&1 </dev/null >/dev/null"#;
const FLAGS: [&str; 13] = [
    "--headless=new",
    "--remote-debugging-pipe",
    // It shows pages of ours only, and tests run as root.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
    "--hide-scrollbars",
    "about:blank",
];

/// See the module.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: String,
    next: u64,
    /// Errors of the console and exceptions that nobody caught, in words.
    errors: Vec<String>,
    _profile: TempDir,
}

impl Browser {
    /// Starts it with one empty page.
    #[must_use]
    pub fn start() -> Self {
        let profile = tempfile::tempdir().expect("a directory for the browser's profile");
        let mut command = Command::new("sh");
        command.args(["-c", WITH_PIPES, "sh", "chromium"]).args(FLAGS);
        command.arg(format!("--user-data-dir={}", profile.path().display()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let mut child = command.spawn().expect("a shell");
        let (to, from) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let mut browser = Self {
            child,
            to,
            from: BufReader::new(from),
            session: String::new(),
            next: 1,
            errors: Vec::new(),
            _profile: profile,
        };
        let targets = browser.call("Target.getTargets", json!({}));
        let pages = targets["targetInfos"].as_array().expect("a list of targets");
        let page = pages.iter().find(|target| target["type"] == "page").expect("a page");
        let attach = json!({ "targetId": page["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", attach);
        browser.session = attached["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// One command, and its result.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.next;
        self.next += 1;
        let mut message = json!({ "id": id, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).expect("the browser listens");
        loop {
            let answer = self.receive(method);
            if answer["id"] == id {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.take_event(&answer);
        }
    }

    fn receive(&mut self, method: &str) -> Value {
        let deadline = Instant::now() + PATIENCE;
        let has_some = !self.from.buffer().is_empty();
        let is_there = has_some || becomes_readable(self.from.get_ref().as_fd(), deadline);
        assert!(is_there, "the browser did not answer {method} within {PATIENCE:?}");
        let mut bytes = Vec::new();
        self.from.read_until(0, &mut bytes).expect("the browser's pipe");
        assert_eq!(
            bytes.pop(),
            Some(0),
            "the browser ended; is chromium installed (deploy/bootstrap.sh test)?"
        );
        serde_json::from_slice(&bytes).expect("JSON of the browser's")
    }

    fn take_event(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.errors.push(params["exceptionDetails"].to_string()),
            Some("Runtime.consoleAPICalled") if params["type"] == "error" => {
                self.errors.push(params["args"].to_string());
            }
            Some("Log.entryAdded") if params["entry"]["level"] == "error" => {
                self.errors.push(params["entry"].to_string());
            }
            _ => {}
        }
    }

    /// Shows an address, and waits until it is loaded.
    pub fn open(&mut self, address: &str) {
        let result = self.call("Page.navigate", json!({ "url": address }));
        assert!(result["errorText"].is_null(), "{address}: {}", result["errorText"]);
        self.wait("document.readyState === 'complete'");
    }

    /// What a script's expression gives; it may be a promise.
    pub fn eval(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let result = self.call("Runtime.evaluate", params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {}", result["exceptionDetails"]);
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true of what is shown; fails the test where it does not become so.
    pub fn wait(&mut self, expression: &str) {
        let deadline = Instant::now() + PATIENCE;
        // Asked with each frame that the browser draws, or would draw.
        let ask = format!("new Promise(tell => requestAnimationFrame(() => tell(Boolean({expression}))))");
        while self.eval(&ask) != true {
            if Instant::now() > deadline {
                let shown = self.eval("document.body.innerText");
                panic!("{expression} did not become true; shown is {shown}; errors: {:?}", self.errors);
            }
        }
    }

    /// Sets the window's size, and light or dark.
    pub fn window(&mut self, width: u32, height: u32, scheme: &str) {
        let is_phone = width < 500;
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// Writes what is shown to a file, all of the page where `whole`.
    pub fn screenshot(&mut self, file: &Path, whole: bool) {
        let params = json!({ "format": "png", "captureBeyondViewport": whole });
        let picture = self.call("Page.captureScreenshot", params);
        let bytes = decoded(picture["data"].as_str().expect("a picture"));
        std::fs::write(file, bytes).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }

    /// Fails the test where anything has gone wrong in the page so far.
    pub fn assert_no_errors(&self) {
        assert!(self.errors.is_empty(), "{:#?}", self.errors);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its helpers are in its group, and end with it besides.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Base64, which DevTools have pictures in.
fn decoded(text: &str) -> Vec<u8> {
    let value = |c: u8| match c {
        b'A'..=b'Z' => u32::from(c - b'A'),
        b'a'..=b'z' => u32::from(c - b'a') + 26,
        b'0'..=b'9' => u32::from(c - b'0') + 52,
        b'+' => 62,
        _ => 63,
    };
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for group in text.trim_end_matches('=').as_bytes().chunks(4) {
        let bits = group.iter().fold(0u32, |bits, c| bits << 6 | value(*c)) << (6 * (4 - group.len()));
        bytes.extend(&bits.to_be_bytes()[1..group.len()]);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_every_length() {
        let text = |encoded| String::from_utf8(decoded(encoded)).unwrap();
        assert_eq!(["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="].map(text), ["", "f", "fo", "foo", "foob"]);
        assert_eq!(decoded("//79+w=="), [0xff, 0xfe, 0xfd, 0xfb]);
    }
}

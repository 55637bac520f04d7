//! Fenced blocks of a page: what language each is in, and the marks behind it that say what a test does with it:
//! `sh,run`, `sh,run,exit=69`, `sh,norun=needs-hosts`, `text,output`, `rust,file=PATH`.
//!
//! Must not run anything.

/// Why a block of commands is not run by a test. Closed, so that a reason is one that somebody thought about.
pub const REASONS: [(&str, &str); 9] = [
    ("needs-hosts", "it needs several hosts"),
    ("needs-build", "it builds, for minutes"),
    ("needs-slurm", "it needs Slurm; the suite slurm runs such commands"),
    ("needs-kubernetes", "it needs a Kubernetes cluster"),
    ("needs-systemd", "it needs a service manager; the suites systemd and package run such commands"),
    ("needs-rdma", "it needs an RDMA device; the suite guest runs such commands"),
    ("needs-python", "it needs the Python package; the suites python, torch and mxnet run such commands"),
    ("needs-terminal", "it draws in a terminal, or goes on until it is told to end"),
    ("form", "it is the form of a command: names stand for the reader's own"),
];

/// One fenced block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Its first line's number on the page, from 1.
    pub line: usize,
    /// The first word behind the fence; empty where there is none.
    pub language: String,
    /// What follows it, split at commas and at `=`.
    pub marks: Vec<(String, Option<String>)>,
    /// The lines between the fences.
    pub text: String,
}

impl Block {
    /// Has it this mark?
    #[must_use]
    pub fn is(&self, mark: &str) -> bool {
        self.marks.iter().any(|(name, _)| name == mark)
    }

    /// What stands behind a mark's `=`.
    #[must_use]
    pub fn value(&self, mark: &str) -> Option<&str> {
        self.marks.iter().find(|(name, _)| name == mark)?.1.as_deref()
    }

    /// Are these commands that a test runs?
    #[must_use]
    pub fn runs(&self) -> bool {
        self.language == "sh" && self.is("run")
    }

    /// The exit code that its last command ends with.
    pub fn exit(&self) -> i32 {
        self.value("exit").and_then(|code| code.parse().ok()).unwrap_or(0)
    }
}

/// The blocks of a page.
#[must_use]
pub fn of(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (index, line) in page.lines().enumerate() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(info), None) => open = Some(begun(index + 1, info)),
            (Some(_), Some(block)) => blocks.push(block),
            (None, Some(mut block)) => {
                block.text.push_str(line);
                block.text.push('\n');
                open = Some(block);
            }
            (None, None) => {}
        }
    }
    blocks.extend(open);
    blocks
}

fn begun(line: usize, info: &str) -> Block {
    let mut words = info.trim().split(',');
    let language = words.next().unwrap_or_default().to_owned();
    let mark = |word: &str| match word.split_once('=') {
        Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
        None => (word.to_owned(), None),
    };
    Block { line, language, marks: words.map(mark).collect(), text: String::new() }
}

/// What is wrong with the marks of a page's blocks: line and words.
#[must_use]
pub fn faults(blocks: &[Block]) -> Vec<(usize, String)> {
    let mut faults = Vec::new();
    let mut before: Option<&Block> = None;
    for block in blocks {
        if let Some(what) = fault(block, before) {
            faults.push((block.line, what));
        }
        before = Some(block);
    }
    faults
}

fn fault(block: &Block, before: Option<&Block>) -> Option<String> {
    let known = match block.language.as_str() {
        "sh" => &["run", "norun", "exit"][..],
        "text" => &["output"],
        "bash" | "shell" | "console" => {
            return Some("commands stand in blocks of the language sh".to_owned());
        }
        _ => &["file"],
    };
    if let Some((name, _)) = block.marks.iter().find(|(name, _)| !known.contains(&name.as_str())) {
        return Some(format!("a block of {:?} has no mark {name:?}; it has {known:?}", block.language));
    }
    if block.is("output") && !before.is_some_and(Block::runs) {
        return Some("shown output has no block before it that is run".to_owned());
    }
    if block.language != "sh" {
        return None;
    }
    let reason = block.value("norun");
    match (block.is("run"), block.is("norun")) {
        (true, false) => None,
        (false, true) if REASONS.iter().any(|(known, _)| Some(*known) == reason) => None,
        (false, true) => {
            let known: Vec<&str> = REASONS.iter().map(|(known, _)| *known).collect();
            Some(format!("{reason:?} is no reason not to run a block; these are: {}", known.join(", ")))
        }
        (false, false) => Some("a block of commands is marked neither run nor norun=REASON".to_owned()),
        (true, true) => Some("a block of commands is marked both run and norun".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str =
        "# A\n\n```sh,run,exit=69\nfalse\n```\n\n```text,output\n…\n```\ntext\n```\nplain\n```\n";

    #[test]
    fn blocks_have_language_marks_and_text() {
        let blocks = of(PAGE);
        assert_eq!(blocks.len(), 3);
        assert_eq!((blocks[0].line, blocks[0].text.as_str()), (3, "false\n"));
        assert!(blocks[0].runs());
        assert_eq!((blocks[0].exit(), blocks[1].exit()), (69, 0));
        assert!(blocks[1].is("output"));
        assert_eq!(blocks[2].language, "");
        assert!(faults(&blocks).is_empty());
    }

    #[test]
    fn wrong_marks_are_named() {
        let of_one = |info: &str| faults(&of(&format!("```{info}\nx\n```\n")));
        assert!(of_one("sh,norun=needs-hosts").is_empty());
        assert!(of_one("toml").is_empty() && of_one("").is_empty() && of_one("rust,file=a.rs").is_empty());
        for info in
            ["sh", "sh,norun", "sh,norun=why", "sh,run,norun=form", "console", "sh,runs", "text,output"]
        {
            assert_eq!(of_one(info).len(), 1, "{info}");
        }
    }
}

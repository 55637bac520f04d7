//! Documents keep up with the tree: a path that a page names exists.

use super::{Finding, Repo};

/// Built or made by users: never in the tree.
const MADE_LATER: [&str; 4] = ["target/", "out/", "fuzz/corpus", "fuzz/artifacts"];

/// Stands for any name in an example of a path.
const PLACEHOLDER: &str = "NAME";

/// Every path in backticks or behind a link of a Markdown page exists.
#[must_use]
pub fn paths(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (page, text) in repo.texts.iter().filter(|(path, _)| path.ends_with(".md")) {
        let mut in_block = false;
        for (index, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                in_block = !in_block;
                continue;
            }
            if in_block {
                continue;
            }
            let named = backticked(line).filter_map(|word| as_path(repo, word).map(str::to_owned));
            let linked = links(line).map(|link| beside(page, link));
            for path in named.chain(linked).filter(|path| !exists(repo, page, path)) {
                findings.push(Finding {
                    path: page.clone(),
                    line: index + 1,
                    what: format!("names {path}, which does not exist"),
                    fix: "name what took its place",
                });
            }
        }
    }
    findings
}

/// The page that everybody sees first.
const FRONT: &str = "README.md";
/// Lines that it may have.
const FRONT_LINES_MAX: usize = 180;
/// Programs that it shows: all lines but the first, which says what the file is.
const FRONT_PROGRAMS: [&str; 2] = ["examples/readme/torch_model.py", "examples/readme/embedding_table.py"];
/// Lines that each of them may have.
const FRONT_PROGRAM_LINES_MAX: usize = 15;

/// The README is short, shows its two programs as they are tested, and points at files by links.
#[must_use]
pub fn front(repo: &Repo) -> Vec<Finding> {
    let Some(text) = repo.texts.get(FRONT) else { return Vec::new() };
    let mut findings = Vec::new();
    let mut finding = |line, what, fix| findings.push(Finding { path: FRONT.to_owned(), line, what, fix });
    let lines = text.lines().count();
    if lines > FRONT_LINES_MAX {
        finding(1, format!("has {lines} lines, more than {FRONT_LINES_MAX}"), "move some to a page of docs/");
    }
    for path in FRONT_PROGRAMS {
        let program = repo.texts.get(path).and_then(|text| text.split_once('\n')).map(|(_, rest)| rest);
        let shown =
            program.is_some_and(|program| text.contains(&format!("```python,file={path}\n{program}```\n")));
        if !shown {
            finding(1, format!("does not show {path} as it is"), "copy the file, without its first line");
        }
        if program.is_some_and(|program| program.lines().count() > FRONT_PROGRAM_LINES_MAX) {
            finding(1, format!("{path} has more than {FRONT_PROGRAM_LINES_MAX} lines"), "shorten it");
        }
    }
    let mut in_block = false;
    for (index, line) in text.lines().enumerate() {
        in_block ^= line.starts_with("```");
        let named = backticked(line).filter_map(|word| as_path(repo, word));
        for path in named.filter(|path| !in_block && repo.has(path)) {
            finding(index + 1, format!("names {path} in backticks"), "link to it");
        }
    }
    findings
}

fn exists(repo: &Repo, page: &str, path: &str) -> bool {
    MADE_LATER.iter().any(|made| path.starts_with(made)) || repo.has(path) || repo.has(&beside(page, path))
}

fn backticked(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Targets of `[text](target)` within the repository.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split([')', '#', ' ']).next());
    targets.filter(|target| !target.is_empty() && !target.contains(':'))
}

/// A link is relative to its page.
pub(super) fn beside(page: &str, link: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// What looks like a path into the tree: `a/b.rs`, `a/b/`, `a/b.rs::item`, `a/b.rs:12`, `PAGE.md`.
fn as_path<'a>(repo: &Repo, word: &'a str) -> Option<&'a str> {
    let path = word.split(':').next().unwrap_or(word);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/*".contains(c);
    if path.is_empty()
        || !path.chars().all(is_plain)
        || path.starts_with(['/', '-'])
        || path.contains(PLACEHOLDER)
    {
        return None;
    }
    let Some((first, _)) = path.split_once('/') else {
        return (path.ends_with(".md") || path.ends_with(".rs")).then_some(path);
    };
    let last = path.rsplit('/').next().unwrap_or_default();
    let looks_so = last.is_empty() || last.contains('.') || repo.has(first);
    looks_so.then_some(path)
}

#[cfg(test)]
mod tests {
    use super::super::repo::fake;
    use super::*;

    fn missing(page: &str, text: &str) -> Vec<String> {
        let repo = fake(&[(page, text), ("server/src/lib.rs", ""), ("docs/metrics.md", "")]);
        paths(&repo).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn the_front_page_shows_its_programs_and_links() {
        let good = "# A\n```python,file=examples/readme/torch_model.py\na\n```\n```python,file=examples/readme/embedding_table.py\nb\n```\n";
        let found = |page: &str| {
            let files = [
                (FRONT, page),
                (FRONT_PROGRAMS[0], "#\na\n"),
                (FRONT_PROGRAMS[1], "#\nb\n"),
                ("docs/a.md", ""),
            ];
            front(&fake(&files)).into_iter().map(|finding| finding.what).collect::<Vec<_>>()
        };
        assert!(found(good).is_empty(), "{:?}", found(good));
        assert_eq!(
            found(&good.replace("\na\n", "\nc\n")),
            ["does not show examples/readme/torch_model.py as it is"]
        );
        assert_eq!(found(&format!("{good}see `docs/a.md`\n")), ["names docs/a.md in backticks"]);
        assert_eq!(found(&format!("{good}{}", "x\n".repeat(180))), ["has 187 lines, more than 180"]);
    }

    #[test]
    fn named_paths_must_exist() {
        let good =
            "`server/src/lib.rs` `server/src/` `server/src` `server/src/lib.rs::run` `server/src/*.rs`";
        assert!(missing("A.md", good).is_empty());
        for gone in
            ["server/src/gone.rs", "server/gone", "gone/x.rs", "gone/", "GONE.md", "server/src/x_*.rs"]
        {
            let found = missing("A.md", &format!("see `{gone}`"));
            assert_eq!(found, [format!("names {gone}, which does not exist")]);
        }
    }

    #[test]
    fn other_words_are_no_paths() {
        let text = "`/metrics` `make test` `p50/p99` `text/plain` `gradwire.toml` `a::b` `--x/y` `target/x.log` `1/2` `gone/sim_NAME.rs`";
        assert!(missing("A.md", text).is_empty(), "{:?}", missing("A.md", text));
        assert!(missing("A.md", "```\n`gone/x.rs`\n```\n").is_empty());
    }

    #[test]
    fn links_are_relative_to_their_page() {
        let text = "[m](metrics.md) [l](../server/src/lib.rs#top) [w](https://a/b) [h](#here)";
        assert!(missing("docs/page.md", text).is_empty(), "{:?}", missing("docs/page.md", text));
        assert_eq!(missing("docs/page.md", "[g](gone.md)").len(), 1);
        assert_eq!(missing("A.md", "[m](metrics.md)").len(), 1);
    }
}

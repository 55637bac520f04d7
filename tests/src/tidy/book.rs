//! The book holds together: its list of chapters names every page, blocks are marked, and links lead somewhere, in the book and on
//! every other page.

use super::documents::beside;
use super::{Finding, Repo};
use crate::book::{PLACE, SUMMARY, blocks};
use std::collections::{BTreeMap, BTreeSet};

/// The list of chapters has every page of `docs/`, and no other.
#[must_use]
pub fn chapters(repo: &Repo) -> Vec<Finding> {
    let summary = repo.texts.get(SUMMARY).map(String::as_str).unwrap_or_default();
    let listed: BTreeSet<String> = links(summary).map(|(_, link)| format!("{PLACE}{link}")).collect();
    let there: BTreeSet<String> = pages(repo).map(|(path, _)| path.to_owned()).collect();
    let finding =
        |path: &String, what: &str, fix| Finding { path: path.clone(), line: 1, what: what.to_owned(), fix };
    let missing = there
        .difference(&listed)
        .map(|path| finding(path, "is no chapter of the book", "add it to docs/SUMMARY.md"));
    let gone = listed.difference(&there).map(|path| {
        finding(path, "is a chapter and no page", "remove it from docs/SUMMARY.md, or write the page")
    });
    missing.chain(gone).collect()
}

/// Every block of commands is run, or says why not; other marks are known; a block that is a file has its text.
#[must_use]
pub fn blocks_are_marked(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in pages(repo) {
        let fix = "see \"The book\" in CONTRIBUTING.md";
        let all = blocks::of(text);
        let faults = blocks::faults(&all).into_iter();
        findings.extend(faults.map(|(line, what)| Finding { path: path.to_owned(), line, what, fix }));
        for block in &all {
            let Some(file) = block.value("file") else { continue };
            if text_of(repo, file).is_none_or(|text| !text.ends_with(&block.text)) {
                let what = format!("this block is not the end of {file}");
                findings.push(Finding {
                    path: path.to_owned(),
                    line: block.line,
                    what,
                    fix: "copy the file's",
                });
            }
        }
    }
    findings
}

fn text_of(repo: &Repo, path: &str) -> Option<String> {
    let source = repo.sources.iter().find(|source| source.path == path);
    source.map(|source| source.lines.join("\n")).or_else(|| repo.texts.get(path).cloned())
}

/// Links of every Markdown page but the list of chapters lead to a file of the repository. If a link names a heading, the page has that
/// heading. Links of the book stay within it, because its HTML has nothing else. Links to other sites
/// are checked for their form only.
#[must_use]
pub fn links_lead_somewhere(repo: &Repo) -> Vec<Finding> {
    let all = || repo.texts.iter().filter(|(path, _)| path.ends_with(".md") && path.as_str() != SUMMARY);
    let ids: BTreeMap<&str, BTreeSet<String>> =
        all().map(|(path, text)| (path.as_str(), headings(text))).collect();
    let mut findings = Vec::new();
    for (path, text) in all() {
        for (line, link) in links(text) {
            let what = if link.contains(':') { outer(&link) } else { inner(repo, &ids, path, &link) };
            let fix = "link to a page or file that is there; in docs/, name files outside of it in backticks";
            findings.extend(what.map(|what| Finding { path: path.clone(), line, what, fix }));
        }
    }
    findings
}

/// What is wrong with a link to another site.
fn outer(link: &str) -> Option<String> {
    let host = link.strip_prefix("https://").or_else(|| link.strip_prefix("http://"));
    let host = host.map(|rest| rest.split(['/', '#', '?', ':']).next().unwrap_or_default());
    let is_good = link.starts_with("mailto:")
        || host.is_some_and(|host| host.split('.').all(|part| !part.is_empty()) && !link.contains('<'));
    (!is_good).then(|| format!("{link} is no address of a site"))
}

/// What is wrong with a link within the repository.
fn inner(repo: &Repo, ids: &BTreeMap<&str, BTreeSet<String>>, path: &str, link: &str) -> Option<String> {
    let (file, id) = link.split_once('#').unwrap_or((link, ""));
    let target = if file.is_empty() { path.to_owned() } else { beside(path, file) };
    match ids.get(target.as_str()) {
        _ if path.starts_with(PLACE) && !target.starts_with(PLACE) => {
            Some(format!("{link} leads out of the book"))
        }
        Some(ids) if !id.is_empty() && !ids.contains(id) => Some(format!("{target} has no heading #{id}")),
        None if !repo.has(target.trim_end_matches('/')) => Some(format!("{link} leads nowhere")),
        _ => None,
    }
}

/// The book's pages.
fn pages(repo: &Repo) -> impl Iterator<Item = (&str, &str)> {
    let is_page = |path: &str| path.starts_with(PLACE) && path.ends_with(".md") && path != SUMMARY;
    repo.texts
        .iter()
        .filter(move |(path, _)| is_page(path))
        .map(|(path, text)| (path.as_str(), text.as_str()))
}

/// Targets of `[text](target)`, with their lines, outside blocks and backticks.
fn links(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut in_block = false;
    text.lines().enumerate().flat_map(move |(index, line)| {
        in_block ^= line.starts_with("```");
        let plain: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        let targets = plain.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
        let targets: Vec<_> = targets.map(|target| (index + 1, target.to_owned())).collect();
        if in_block { Vec::new() } else { targets }
    })
}

/// Ids of headings, as mdBook makes them.
fn headings(text: &str) -> BTreeSet<String> {
    let mut in_block = false;
    let mut ids = BTreeSet::new();
    for line in text.lines() {
        in_block ^= line.starts_with("```");
        if in_block || !line.starts_with('#') {
            continue;
        }
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let id: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let again = (1..).map(|n| format!("{id}-{n}")).find(|id| !ids.contains(id));
        let fresh = !ids.contains(&id);
        ids.extend(if fresh { Some(id) } else { again });
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::super::repo::fake;
    use super::*;

    #[test]
    fn links_of_other_pages_lead_to_files_and_headings() {
        let page = "# A\n[x](docs/b.md#two) [y](docs/) [z](#a) [s](https://a.b/c#d) ![f](docs/f.svg)\n";
        let files = |page| [("README.md", page), ("docs/b.md", "# B\n## Two\n"), ("docs/f.svg", "")];
        assert!(links_lead_somewhere(&fake(&files(page))).is_empty());
        for (bad, what) in [
            ("[x](b.md)", "b.md leads nowhere"),
            ("[x](docs/b.md#three)", "docs/b.md has no heading #three"),
            ("[x](#none)", "README.md has no heading #none"),
            ("[x](docs/g.svg)", "docs/g.svg leads nowhere"),
            ("[x](https://)", "https:// is no address of a site"),
            ("[x](ftp:a)", "ftp:a is no address of a site"),
        ] {
            let found = links_lead_somewhere(&fake(&files(bad)));
            assert_eq!(found.iter().map(|finding| finding.what.as_str()).collect::<Vec<_>>(), [what]);
        }
    }

    fn found(rule: fn(&Repo) -> Vec<Finding>, page: &str) -> Vec<String> {
        let summary = "- [A](a.md)\n- [Gone](gone.md)\n";
        let files = [
            (SUMMARY, summary),
            ("docs/a.md", page),
            ("docs/b.md", "# B\n## Two words\n"),
            ("docs/f.svg", ""),
        ];
        rule(&fake(&files))
            .into_iter()
            .map(|finding| format!("{}:{}: {}", finding.path, finding.line, finding.what))
            .collect()
    }

    #[test]
    fn pages_and_chapters_are_the_same() {
        let wrong = ["docs/b.md:1: is no chapter of the book", "docs/gone.md:1: is a chapter and no page"];
        assert_eq!(found(chapters, "# A"), wrong);
    }

    #[test]
    fn links_and_headings_meet() {
        let good = "# A\n## B: c\n## B: c\n[x](b.md#two-words) ![f](f.svg) [y](#b-c) [z](#b-c-1) [w](https://a.b/#c) `[v](gone.md)`\n";
        assert!(found(links_lead_somewhere, good).is_empty(), "{:?}", found(links_lead_somewhere, good));
        let told = found(links_lead_somewhere, "[x](gone.md)\n[y](b.md#three)\n[z](../README.md)\n");
        let wrong = [
            "1: gone.md leads nowhere",
            "2: docs/b.md has no heading #three",
            "3: ../README.md leads out of the book",
        ];
        assert_eq!(told, wrong.map(|what| format!("docs/a.md:{what}")));
    }

    #[test]
    fn blocks_say_whether_they_run() {
        assert!(
            found(blocks_are_marked, "```sh,run\ntrue\n```\n```md,file=docs/b.md\n## Two words\n```\n")
                .is_empty()
        );
        assert_eq!(found(blocks_are_marked, "```sh\ntrue\n```\n```md,file=docs/b.md\nother\n```\n").len(), 2);
    }
}

//! Circles: files of one crate that take names from each other, directly or through other files. Nobody can understand, test or move
//! one file of a circle without all others.
//!
//! Must not read code: [`Modules`] does.

use super::modules::{Import, Modules};
use super::{Finding, Repo};
use std::collections::{BTreeMap, BTreeSet};

/// What each file takes from others: the first line and the names.
type Ties<'a> = BTreeMap<(&'a str, &'a str), (usize, BTreeSet<&'a str>)>;

/// No files of a crate take names from each other.
#[must_use]
pub fn none(repo: &Repo) -> Vec<Finding> {
    let is_root = |path: &str| {
        path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs") || path.contains("/src/bin/")
    };
    let mut findings = Vec::new();
    for root in repo.sources.iter().filter(|source| is_root(&source.path)) {
        let imports = Modules::of(repo, root).imports();
        let ties = ties(&imports);
        findings.extend(circles(&ties).iter().map(|circle| finding(circle, &ties)));
    }
    findings
}

fn ties(imports: &[Import]) -> Ties<'_> {
    let mut ties = Ties::new();
    for import in imports {
        let (_, names) = ties.entry((&import.from, &import.to)).or_insert((import.line, BTreeSet::new()));
        names.insert(import.name.as_str());
    }
    ties
}

fn finding(circle: &BTreeSet<&str>, ties: &Ties<'_>) -> Finding {
    let within = ties.iter().filter(|((from, to), _)| circle.contains(from) && circle.contains(to));
    let lines = within.map(|((from, to), (line, names))| {
        let names = Vec::from_iter(names.iter().copied()).join(", ");
        format!("\n      {from}:{line} takes from {to}: {names}")
    });
    Finding {
        path: circle.first().map_or_else(String::new, |first| (*first).to_owned()),
        line: 1,
        what: format!(
            "{} files take names from each other:{}\n    ",
            circle.len(),
            lines.collect::<String>()
        ),
        fix: "move what both need below both, join the files if they are one thing, or pass data instead",
    }
}

/// Sets of more than one file that all reach each other.
fn circles<'a>(ties: &Ties<'a>) -> Vec<BTreeSet<&'a str>> {
    let files: BTreeSet<&str> = ties.keys().flat_map(|(from, to)| [*from, *to]).collect();
    let mut back = BTreeMap::<&str, BTreeSet<&str>>::new();
    let mut ahead = back.clone();
    for (from, to) in ties.keys() {
        ahead.entry(from).or_default().insert(to);
        back.entry(to).or_default().insert(from);
    }
    let mut circles = Vec::new();
    let mut seen = BTreeSet::<&str>::new();
    for file in files {
        if seen.contains(file) {
            continue;
        }
        let circle: BTreeSet<&str> =
            reached(file, &ahead).intersection(&reached(file, &back)).copied().collect();
        seen.extend(&circle);
        if circle.len() > 1 {
            circles.push(circle);
        }
    }
    circles
}

/// All that `file` leads to, itself included.
fn reached<'a>(file: &'a str, steps: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::from([file]);
    let mut unread = vec![file];
    while let Some(next) = unread.pop() {
        let new = steps.get(next).into_iter().flatten().filter(|to| reached.insert(to));
        unread.extend(new.copied().collect::<Vec<_>>());
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::super::repo::fake;
    use super::*;

    /// The files of a crate `a` below `src/`, with `lib.rs` first.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files.iter().map(|(path, text)| (format!("a/src/{path}"), *text)).collect();
        let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        none(&fake(&files)).into_iter().map(|finding| finding.what.replace("a/src/", "")).collect()
    }

    #[test]
    fn a_circle_is_found_with_the_names_that_tie_it() {
        let lib = ("lib.rs", "mod one;\nmod two;\nmod three;");
        let one = ("one.rs", "use crate::two::{Two, deep};\npub struct One;");
        let three = ("three.rs", "use crate::one::One;\npub struct Three(One);");
        let back = ("two.rs", "\nuse super::three;\npub struct Two;\npub fn deep(_: three::Three) {}");
        let what = found(&[lib, one, back, three]);
        assert_eq!(what.len(), 1, "{what:?}");
        for tie in [
            "3 files",
            "one.rs:1 takes from two.rs: Two, deep",
            "two.rs:4 takes from three.rs: Three",
            "three.rs:1 takes from one.rs: One",
        ] {
            assert!(what[0].contains(tie), "{tie}: {what:?}");
        }
        assert!(found(&[lib, one, ("two.rs", "pub struct Two;\npub fn deep() {}"), three]).is_empty());
    }

    #[test]
    fn a_child_that_takes_from_its_parent_is_a_circle() {
        let parent = |text| ("lib.rs", text);
        let child = ("child.rs", "use super::Of;\npub struct Child(Of);");
        assert_eq!(found(&[parent("mod child;\nuse child::Child;\npub struct Of;"), child]).len(), 1);
        assert_eq!(found(&[parent("mod child;\npub struct Of;\nfn f(_: child::Child) {}"), child]).len(), 1);
        assert_eq!(found(&[parent("mod child;\npub struct Of;\nuse child::*;"), child]).len(), 1);
        assert!(found(&[parent("mod child;\npub struct Of;"), child]).is_empty());
    }

    #[test]
    fn a_name_is_taken_from_the_file_that_defines_it() {
        let parent =
            ("lib.rs", "mod one;\nmod two;\npub use one::One;\npub use two::*;\nfn f(_: one::One) {}");
        let one = ("one.rs", "pub struct One;");
        let hands_on = ("lib.rs", "mod one;\nmod two;\npub use one::One;\npub use two::*;\npub struct Of;");
        assert!(
            found(&[hands_on, one, ("two.rs", "use crate::{Of, One};\npub struct Two(One, Of);")]).is_empty()
        );
        assert!(found(&[parent, one, ("two.rs", "use crate::One;\npub struct Two(One);")]).is_empty());
        let one = ("one.rs", "use super::Two;\npub struct One;");
        let what = found(&[parent, one, ("two.rs", "use crate::One as Uno;\npub struct Two(Uno);")]);
        assert!(
            what[0].contains("2 files") && what[0].contains("one.rs:1 takes from two.rs: Two"),
            "{what:?}"
        );
    }

    #[test]
    fn tests_comments_and_visibility_take_nothing() {
        let lib = ("lib.rs", "mod one;\nmod two;");
        let two = ("two.rs", "use crate::one::One;\npub struct Two(One);");
        for one in [
            "#[cfg(test)]\nmod tests {\n    use crate::two::Two;\n}\npub struct One;",
            "/// See [`crate::two::Two`].\npub struct One(&'static str); // crate::two::Two",
            "pub(in crate::two) struct One;",
            "use other::two::Two;\npub struct One;",
        ] {
            assert!(found(&[lib, ("one.rs", one), two]).is_empty(), "{one}");
        }
        let makes = "pub struct One;\nmacro_rules! make { () => { $crate::two::Two } }";
        assert_eq!(found(&[lib, ("one.rs", makes), two]).len(), 1);
    }
}

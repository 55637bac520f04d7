//! The repository's files: what git tracks or would track. Reads only.

use super::source::Source;
use crate::repository;
use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Extensions of files that people read and rules look into.
const TEXT: [&str; 11] = ["rs", "toml", "md", "sh", "py", "yml", "yaml", "json", "c", "h", "hpp"];
/// Directories that a walk without git leaves out: what is built or found.
const BUILT: [&str; 6] = ["target", ".git", "out", "fuzz/target", "fuzz/corpus", "fuzz/artifacts"];

/// Everything the rules look at.
#[derive(Debug)]
pub struct Repo {
    /// All paths from the root.
    pub paths: BTreeSet<String>,
    /// Rust files.
    pub sources: Vec<Source>,
    /// Other text files by path.
    pub texts: BTreeMap<String, String>,
    /// Cargo manifests by path.
    pub manifests: BTreeMap<String, toml::Table>,
}

impl Repo {
    /// Reads the repository that this package belongs to.
    pub fn load() -> Result<Self> {
        let root = &repository::root()?;
        let mut files = BTreeMap::new();
        let mut paths = BTreeSet::new();
        for path in tracked(root).or_else(|_| walked(root))? {
            let file = root.join(&path);
            // Tracked, but deleted in the working tree.
            if !file.is_file() {
                continue;
            }
            if is_text(&path) {
                files.insert(path.clone(), std::fs::read_to_string(&file).with_context(|| path.clone())?);
            }
            paths.insert(path);
        }
        ensure!(
            paths.len() > 10,
            "only {} files under {}: is this the repository?",
            paths.len(),
            root.display()
        );
        Self::from_files(files, paths)
    }

    /// A repository of these text files and paths.
    pub fn from_files(files: BTreeMap<String, String>, paths: BTreeSet<String>) -> Result<Self> {
        let mut repo =
            Self { paths, sources: Vec::new(), texts: BTreeMap::new(), manifests: BTreeMap::new() };
        for (path, text) in files {
            if path.ends_with(".rs") {
                repo.sources.push(Source::new(&path, &text));
                continue;
            }
            if path.ends_with("Cargo.toml") {
                repo.manifests.insert(path.clone(), text.parse().with_context(|| path.clone())?);
            }
            repo.texts.insert(path, text);
        }
        repo.mark_test_files();
        Ok(repo)
    }

    /// A file that a module declares for tests only is a test, and what is below it.
    fn mark_test_files(&mut self) {
        let stems: Vec<String> =
            self.sources.iter().flat_map(|source| source.test_modules.iter().cloned()).collect();
        for source in &mut self.sources {
            let below = |stem: &String| {
                source
                    .path
                    .strip_prefix(stem.as_str())
                    .is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
            };
            if stems.iter().any(below) {
                source.mark_all_as_test();
            }
        }
    }

    /// Whether a file, a directory, or at least one match of a `*` pattern exists.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        if let Some((before, after)) = path.split_once('*') {
            let fits = |p: &String| p.strip_prefix(before).is_some_and(|rest| rest.ends_with(after));
            return self.paths.iter().any(fits);
        }
        let directory = format!("{path}/");
        self.paths.contains(path) || self.paths.iter().any(|p| p.starts_with(&directory))
    }

    /// Name of the package in `directory`.
    #[must_use]
    pub fn package_name(&self, directory: &str) -> Option<&str> {
        self.manifests.get(&format!("{directory}/Cargo.toml"))?.get("package")?.get("name")?.as_str()
    }

    /// Directories of the workspace's packages.
    #[must_use]
    pub fn members(&self) -> Vec<&str> {
        let members = self.manifests.get("Cargo.toml").and_then(|root| root.get("workspace")?.get("members"));
        members
            .and_then(|list| list.as_array())
            .into_iter()
            .flatten()
            .filter_map(|name| name.as_str())
            .collect()
    }
}

fn is_text(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.rsplit_once('.').is_some_and(|(_, extension)| TEXT.contains(&extension))
        || matches!(name, "Makefile" | "run")
}

/// What git tracks, and new files that it does not ignore: what the next commit would hold.
fn tracked(root: &Path) -> Result<Vec<String>> {
    let mut command = Command::new("git");
    // A checkout of another user's, as in containers, is as good.
    command.args(["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let output = command.current_dir(root).output()?;
    ensure!(output.status.success(), "git ls-files failed");
    let text = String::from_utf8(output.stdout)?;
    Ok(text.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect())
}

/// Without git, as in an unpacked archive: all files but those known to be built.
fn walked(root: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    let mut open = vec![PathBuf::new()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(root.join(&directory))? {
            let entry = entry?;
            let path = directory.join(entry.file_name());
            let name = path.to_string_lossy().into_owned();
            if BUILT.contains(&name.as_str()) {
                continue;
            }
            if entry.file_type()?.is_dir() {
                open.push(path);
            } else {
                files.push(name);
            }
        }
    }
    Ok(files)
}

/// A repository for the rules' own tests.
#[cfg(test)]
#[must_use]
pub fn fake(files: &[(&str, &str)]) -> Repo {
    let texts: BTreeMap<_, _> = files.iter().map(|(path, text)| ((*path).into(), (*text).into())).collect();
    let paths = texts.keys().cloned().collect();
    Repo::from_files(texts, paths).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_test_modules_are_tests() {
        let repo = fake(&[
            ("a/src/lib.rs", "#[cfg(test)]\nmod tests;\nmod tests_of;"),
            ("a/src/tests.rs", "fn a() {}"),
            ("a/src/tests/deep.rs", "fn a() {}"),
            ("a/src/tests_of.rs", "fn a() {}"),
        ]);
        let tests: Vec<_> =
            repo.sources.iter().filter(|s| s.is_test.iter().all(|t| *t)).map(|s| s.path.as_str()).collect();
        assert_eq!(tests, ["a/src/tests.rs", "a/src/tests/deep.rs"]);
    }

    #[test]
    fn knows_files_directories_and_patterns() {
        let repo = fake(&[("a/src/b_c.md", "")]);
        for path in ["a/src/b_c.md", "a/src", "a/src/", "a/src/b_*.md", "a"] {
            assert!(repo.has(path), "{path}");
        }
        for path in ["a/src/b", "a/sr", "a/src/x_*.md", "b"] {
            assert!(!repo.has(path), "{path}");
        }
    }

    #[test]
    fn both_ways_to_list_files_find_this_one() {
        let root = &repository::root().unwrap();
        assert!(walked(root).unwrap().iter().any(|path| path == "tests/src/tidy/repo.rs"));
        if root.join(".git").exists() {
            assert!(tracked(root).unwrap().iter().any(|path| path == "tests/src/tidy/repo.rs"));
        }
    }
}

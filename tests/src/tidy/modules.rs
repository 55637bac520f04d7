//! The modules of a crate, and what the names in their paths lead to: reads `mod`, `use` and paths from masked code, and follows
//! re-exports to the file that defines a name.
//!
//! Must not know any rule. It reads no types: what a method call leads to, or a name inside a string or from a macro, stays unseen.

use super::source::module_stem;
use super::{Repo, Source};
use std::collections::{BTreeMap, BTreeSet};

/// A path longer than this many re-exports is taken for one that leads nowhere.
const REEXPORTS_MAX: usize = 16;
/// Words that begin an item; the name follows.
const ITEMS: [&str; 8] = ["fn", "struct", "enum", "union", "trait", "type", "const", "static"];

/// A path that a file writes.
#[derive(Debug)]
struct Path {
    module: usize,
    line: usize,
    names: Vec<String>,
}

/// A module: a file, or a block in one.
#[derive(Debug, Default)]
struct Module {
    file: usize,
    parent: usize,
    modules: BTreeMap<String, usize>,
    items: BTreeSet<String>,
    /// What `use` brings in, under its name here.
    uses: Vec<(String, Vec<String>)>,
    globs: Vec<Vec<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Module(usize),
    /// A name that this file defines.
    Item(usize),
}

/// The modules below one `lib.rs`, `main.rs`, or other root.
#[derive(Debug, Default)]
pub struct Modules<'a> {
    files: Vec<&'a Source>,
    modules: Vec<Module>,
    /// Macros need no path: each is known by its name from its file on.
    macros: BTreeMap<String, usize>,
    paths: Vec<Path>,
}

/// One name that a file takes from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// The file that takes it.
    pub from: String,
    /// Where, from 1.
    pub line: usize,
    /// The file that defines it.
    pub to: String,
    /// The name.
    pub name: String,
}

impl<'a> Modules<'a> {
    /// Reads the modules below `root`.
    #[must_use]
    pub fn of(repo: &'a Repo, root: &'a Source) -> Self {
        let mut all = Self { files: vec![root], modules: vec![Module::default()], ..Self::default() };
        let mut unread = vec![0];
        while let Some(module) = unread.pop() {
            let source = all.files[all.modules[module].file];
            for (parent, name) in Reader::new(source, module).read(&mut all) {
                let stem = module_stem(&source.path, &name);
                let is_it = |s: &&Source| {
                    s.path.strip_prefix(&stem).is_some_and(|rest| rest == ".rs" || rest == "/mod.rs")
                };
                let Some(found) = repo.sources.iter().find(is_it) else { continue };
                all.files.push(found);
                unread.push(all.add(parent, name, all.files.len() - 1));
            }
        }
        all
    }

    /// What the files take from each other.
    #[must_use]
    pub fn imports(&self) -> Vec<Import> {
        let mut imports = Vec::new();
        for path in &self.paths {
            let Some(Target::Item(to)) = self.target(path.module, &path.names, 0) else { continue };
            let from = self.modules[path.module].file;
            if from != to {
                imports.push(Import {
                    from: self.files[from].path.clone(),
                    line: path.line,
                    to: self.files[to].path.clone(),
                    name: named(&path.names).to_owned(),
                });
            }
        }
        imports
    }

    fn add(&mut self, parent: usize, name: String, file: usize) -> usize {
        let module = self.modules.len();
        self.modules.push(Module { file, parent, ..Module::default() });
        self.modules[parent].modules.insert(name, module);
        module
    }

    /// What `path` means in `module`.
    fn target(&self, module: usize, path: &[String], followed: usize) -> Option<Target> {
        let mut at = module;
        let mut is_ours = false;
        for (n, name) in path.iter().enumerate() {
            let is_last = n + 1 == path.len();
            at = match name.as_str() {
                "crate" => 0,
                "self" => at,
                "super" => self.modules[at].parent,
                "*" => return Some(Target::Item(self.modules[at].file)),
                name => match self.named_in(at, name, is_last, followed) {
                    Some(Target::Module(next)) => next,
                    Some(item) => return Some(item),
                    // A macro has made it, in the module where it is looked for.
                    None => return is_ours.then_some(Target::Item(self.modules[at].file)),
                },
            };
            is_ours = true;
        }
        Some(Target::Module(at))
    }

    /// What `name` is in `module`. A name may be a module and an item at once: what more names follow is a module.
    fn named_in(&self, module: usize, name: &str, is_last: bool, followed: usize) -> Option<Target> {
        if followed > REEXPORTS_MAX {
            return None;
        }
        let within = &self.modules[module];
        let own = within.items.contains(name).then_some(Target::Item(within.file));
        let child = within.modules.get(name).map(|child| Target::Module(*child));
        let used = within.uses.iter().filter(|(alias, _)| alias == name);
        let used = used.filter_map(|(_, path)| self.target(module, path, followed + 1));
        let all: Vec<Target> = own.into_iter().chain(child).chain(used).collect();
        let is_wanted = |target: &&Target| matches!(target, Target::Item(_)) == is_last;
        if let Some(found) = all.iter().find(is_wanted).or(all.first()) {
            return Some(*found);
        }
        let globbed = within.globs.iter().find_map(|path| match self.target(module, path, followed + 1)? {
            Target::Module(other) if other != module => self.named_in(other, name, is_last, followed + 1),
            _ => None,
        });
        globbed.or_else(|| self.macros.get(name).map(|file| Target::Item(*file)).filter(|_| is_last))
    }
}

/// Words and signs of a file's production code.
fn tokens(source: &Source) -> Vec<(usize, &str)> {
    let mut all = Vec::new();
    for (line, code) in source.production() {
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let mut rest = code;
        while let Some(first) = rest.chars().next() {
            let length = match first {
                c if is_name(c) => rest.find(|c| !is_name(c)).unwrap_or(rest.len()),
                // A lifetime, or a literal that is blanked.
                '\'' => 1 + rest[1..].find(|c| !is_name(c)).unwrap_or(rest.len() - 1),
                ':' if rest.starts_with("::") => 2,
                c => c.len_utf8(),
            };
            if !first.is_whitespace() {
                all.push((line + 1, &rest[..length]));
            }
            rest = &rest[length..];
        }
    }
    all
}

struct Reader<'a> {
    tokens: Vec<(usize, &'a str)>,
    at: usize,
    /// The module that is read, and the depth of braces that it began at.
    within: Vec<(usize, usize)>,
    depth: usize,
    /// Names that code uses by themselves.
    used: BTreeSet<&'a str>,
    /// What `pub use` brings in, under its name here.
    published: Vec<(String, Path)>,
}

impl<'a> Reader<'a> {
    fn new(source: &'a Source, module: usize) -> Self {
        Self {
            tokens: tokens(source),
            at: 0,
            within: vec![(module, 0)],
            depth: 0,
            used: BTreeSet::new(),
            published: Vec::new(),
        }
    }

    fn token(&self, after: usize) -> &'a str {
        self.tokens.get(self.at + after).map_or("", |(_, token)| token)
    }

    /// Reads the file into `all`; returns the modules that it declares to be in files of their own, with their parents.
    fn read(mut self, all: &mut Modules<'_>) -> Vec<(usize, String)> {
        let mut declared = Vec::new();
        while self.at < self.tokens.len() {
            let (module, depth) = self.within[self.within.len() - 1];
            let is_module_level = self.depth == depth;
            match (self.token(0), self.token(1)) {
                ("{", _) => self.depth += 1,
                ("}", _) => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth < depth && self.within.len() > 1 {
                        self.within.pop();
                    }
                }
                ("mod", name) if is_word(name) && self.token(2) == ";" => {
                    declared.push((module, name.into()));
                    self.at += 1;
                }
                ("mod", name) if is_word(name) && self.token(2) == "{" => {
                    let file = all.modules[module].file;
                    let block = all.add(module, name.into(), file);
                    self.depth += 1;
                    self.within.push((block, self.depth));
                    self.at += 2;
                }
                ("macro_rules", "!") => {
                    let file = all.modules[module].file;
                    all.macros.insert(self.token(2).into(), file);
                    all.modules[module].items.insert(self.token(2).into());
                    self.at += 2;
                }
                ("use", next) if next != "<" => {
                    let is_public = self.at > 0 && matches!(self.tokens[self.at - 1].1, "pub" | ")");
                    self.at += 1;
                    self.tree(all, module, is_public, &mut Vec::new());
                }
                // `pub(in crate::engine)` takes nothing from there.
                ("(", "in") => {
                    self.at += self.tokens[self.at..].iter().take_while(|(_, t)| *t != ")").count();
                }
                (item, name) if is_module_level && ITEMS.contains(&item) && is_word(name) => {
                    let name = if name == "mut" { self.token(2) } else { name };
                    all.modules[module].items.insert(name.into());
                }
                (word, _) if is_word(word) => self.path(all, module),
                _ => {}
            }
            self.at += 1;
        }
        // A name that is only handed on is taken by those who use it.
        let used = self.published.into_iter().filter(|(name, _)| self.used.contains(name.as_str()));
        all.paths.extend(used.map(|(_, path)| path));
        declared
    }

    /// A path in code, or a macro by its bare name.
    fn path(&mut self, all: &mut Modules<'_>, module: usize) {
        let (line, first) = self.tokens[self.at];
        let before = self.at.checked_sub(1).map_or("", |before| self.tokens[before].1);
        if !matches!(before, "." | "::") {
            self.used.insert(first);
        }
        let mut names = vec![first.to_owned()];
        while self.token(1) == "::" && is_word(self.token(2)) {
            names.push(self.token(2).into());
            self.at += 2;
        }
        if (names.len() > 1 || self.token(1) == "!") && before != "::" {
            all.paths.push(Path { module, line, names });
        }
    }

    /// One branch of a `use`: ends at the sign after it.
    fn tree(&mut self, all: &mut Modules<'_>, module: usize, is_public: bool, above: &mut Vec<String>) {
        let length = above.len();
        let line = self.tokens.get(self.at).map_or(0, |(line, _)| *line);
        let mut alias = None;
        loop {
            match self.token(0) {
                "{" => {
                    while !matches!(self.token(0), "}" | "") {
                        self.at += 1;
                        if !matches!(self.token(0), "}" | "") {
                            self.tree(all, module, is_public, above);
                        }
                    }
                    self.at += 1;
                    above.truncate(length);
                    return;
                }
                "as" => {
                    alias = Some(self.token(1).to_owned());
                    self.at += 1;
                }
                ";" | "," | "}" | "" => break,
                "::" => {}
                name => above.push(name.into()),
            }
            self.at += 1;
        }
        let last = above.last().map_or("", String::as_str);
        let own = if last == "self" { above.iter().nth_back(1).map_or("", String::as_str) } else { last };
        let alias = alias.unwrap_or_else(|| own.to_owned());
        let path = Path { module, line, names: above.clone() };
        match last {
            "" => {}
            "*" => all.modules[module].globs.push(above[..above.len() - 1].to_vec()),
            _ => all.modules[module].uses.push((alias.clone(), above.clone())),
        }
        if is_public {
            self.published.push((alias, path));
        } else {
            all.paths.push(path);
        }
        above.truncate(length);
    }
}

fn is_word(token: &str) -> bool {
    token.chars().next().is_some_and(|c| c.is_alphabetic() || c == '_')
}

/// The type or constant in a path, or else its last name.
fn named(path: &[String]) -> &str {
    let is_proper = |name: &&String| name.starts_with(char::is_uppercase);
    path.iter().find(is_proper).or(path.last()).map_or("", String::as_str)
}

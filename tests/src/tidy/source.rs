//! A Rust file as the rules see it: its code without comments and literals, its string literals, and which
//! lines are tests. Knows Rust's tokens just well enough for that; must not know any rule.

/// A Rust file.
#[derive(Clone, Debug)]
pub struct Source {
    /// Path from the repository's root.
    pub path: String,
    /// Lines as written.
    pub lines: Vec<String>,
    /// The same lines with comments and the insides of literals blanked; byte columns are kept.
    pub code: Vec<String>,
    /// String literals with the line (from 0) they start on.
    pub strings: Vec<(usize, String)>,
    /// For each line, whether it is part of a test.
    pub is_test: Vec<bool>,
    /// Modules in files of their own that exist for tests only: their paths without `.rs`.
    pub test_modules: Vec<String>,
}

impl Source {
    /// Reads `text` as Rust.
    #[must_use]
    pub fn new(path: &str, text: &str) -> Self {
        let (masked, strings) = mask(text);
        let code: Vec<String> = masked.split('\n').map(str::to_owned).collect();
        let mut source = Self {
            path: path.to_owned(),
            lines: text.split('\n').map(str::to_owned).collect(),
            is_test: vec![is_test_path(path); code.len()],
            code,
            strings,
            test_modules: Vec::new(),
        };
        source.mark_tests(&masked, text);
        source
    }

    /// Declares the whole file a test.
    pub fn mark_all_as_test(&mut self) {
        self.is_test.fill(true);
    }

    /// Lines of code that are no tests, with their numbers from 0.
    pub fn production(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code
            .iter()
            .enumerate()
            .filter(|(line, _)| !self.is_test[*line])
            .map(|(i, code)| (i, code.as_str()))
    }

    fn mark_tests(&mut self, masked: &str, text: &str) {
        let mut from = 0;
        while let Some(at) = masked[from..].find("#[cfg(").map(|offset| from + offset) {
            from = at + 1;
            let Some(close) = matching(masked, at + 1) else { break };
            if !selects_tests(&masked[at..close]) {
                continue;
            }
            let end = item_end(masked, close + 1);
            let (first, last) = (line_of(masked, at), line_of(masked, end));
            self.is_test[first..=last].fill(true);
            self.test_modules.extend(outer_module(
                &self.path,
                &masked[close + 1..end],
                &text[close + 1..end],
            ));
            from = end.max(from);
        }
        if masked.contains("#![cfg(test)]") {
            self.mark_all_as_test();
        }
    }
}

/// Where the files of the module `name` lie that `path` declares: in `NAME.rs`, or below `NAME/`.
#[must_use]
pub fn module_stem(path: &str, name: &str) -> String {
    let (directory, file) = path.rsplit_once('/').unwrap_or(("", path));
    match file {
        "mod.rs" | "lib.rs" | "main.rs" => format!("{directory}/{name}"),
        _ => format!("{}/{name}", path.trim_end_matches(".rs")),
    }
}

/// Whether `word` stands at `at` in `code` and is no part of a longer name.
#[must_use]
pub fn is_word_at(code: &str, at: usize, word: &str) -> bool {
    let is_name = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
    let bytes = code.as_bytes();
    code[at..].starts_with(word)
        && !is_name(at.checked_sub(1).and_then(|before| bytes.get(before)))
        && !is_name(bytes.get(at + word.len()))
}

/// Where `word` stands as a whole word.
pub fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| is_word_at(code, at, word))
}

/// The bracket that closes the one at `open`, in masked code.
#[must_use]
pub fn matching(masked: &str, open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (offset, byte) in masked.as_bytes()[open..].iter().enumerate() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(open + offset);
                }
            }
            _ => {}
        }
    }
    None
}

/// Number (from 0) of the line that byte `at` is on.
#[must_use]
pub fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
}

/// The end of the item that starts at or after `from`: its closing brace or semicolon.
fn item_end(masked: &str, from: usize) -> usize {
    let bytes = masked.as_bytes();
    let mut at = from;
    while at < bytes.len() {
        match bytes[at] {
            b';' | b'}' => return at,
            b'{' => return matching(masked, at).unwrap_or(bytes.len()),
            // Further attributes, and the parentheses of a signature.
            b'(' | b'[' => at = matching(masked, at).unwrap_or(bytes.len()),
            _ => {}
        }
        at += 1;
    }
    bytes.len()
}

fn selects_tests(attribute: &str) -> bool {
    words(attribute, "test").next().is_some() && !attribute.contains("not(test")
}

/// The module in a file of its own that an item declares; `masked` and `text` are the same stretch.
fn outer_module(path: &str, masked: &str, text: &str) -> Option<String> {
    let at = words(masked, "mod").next().filter(|_| !masked.contains('{'))?;
    let named = text.split_once("#[path = \"").and_then(|(_, rest)| rest.split_once(".rs\""));
    Some(match named {
        Some((file, _)) => format!("{}/{file}", path.rsplit_once('/').map_or("", |(directory, _)| directory)),
        None => module_stem(path, masked[at + 3..].trim()),
    })
}

/// Files that hold nothing but tests, by their place.
fn is_test_path(path: &str) -> bool {
    let below_tests = path.split_once('/').is_some_and(|(_, rest)| rest.starts_with("tests/"));
    below_tests || path.starts_with("tests/src/rigs/") || path.starts_with("fuzz/")
}

/// Blanks comments and the insides of literals; also returns the string literals.
fn mask(text: &str) -> (String, Vec<(usize, String)>) {
    let mut masker = Masker { bytes: text.as_bytes(), at: 0, out: Vec::with_capacity(text.len()) };
    let mut strings = Vec::new();
    while masker.at < masker.bytes.len() {
        let rest = &text.as_bytes()[masker.at..];
        if rest.starts_with(b"//") {
            let length = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            masker.blank(length);
        } else if rest.starts_with(b"/*") {
            masker.blank(block_comment(rest));
        } else if let Some((open, close)) = masker.string() {
            let inside = masker.at + open..masker.at + close;
            let content = String::from_utf8_lossy(&text.as_bytes()[inside.clone()]).into_owned();
            strings.push((line_of(text, inside.start), content));
            masker.keep(open);
            masker.blank(close - open);
            masker.keep(1);
        } else if let Some(length) = char_literal(rest) {
            masker.keep(1);
            masker.blank(length - 2);
            masker.keep(1);
        } else {
            masker.keep(1);
        }
    }
    (String::from_utf8_lossy(&masker.out).into_owned(), strings)
}

struct Masker<'a> {
    bytes: &'a [u8],
    at: usize,
    out: Vec<u8>,
}

impl Masker<'_> {
    fn keep(&mut self, length: usize) {
        self.push(length, |byte| if byte.is_ascii() { byte } else { b'?' });
    }

    fn blank(&mut self, length: usize) {
        self.push(length, |byte| if byte == b'\n' { byte } else { b' ' });
    }

    fn push(&mut self, length: usize, becomes: fn(u8) -> u8) {
        let end = (self.at + length).min(self.bytes.len());
        self.out.extend(self.bytes[self.at..end].iter().map(|byte| becomes(*byte)));
        self.at = end;
    }

    /// If a string literal starts here: where its inside starts and ends, counted from here.
    fn string(&self) -> Option<(usize, usize)> {
        let rest = &self.bytes[self.at..];
        let in_name = self.at > 0 && {
            let before = self.bytes[self.at - 1];
            before.is_ascii_alphanumeric() || before == b'_'
        };
        if rest[0] == b'"' {
            return Some((1, 1 + quoted(&rest[1..])));
        }
        if in_name || !matches!(rest[0], b'r' | b'b' | b'c') {
            return None;
        }
        let prefix = rest.iter().take(2).take_while(|byte| matches!(byte, b'r' | b'b' | b'c')).count();
        let raw = rest[..prefix].contains(&b'r');
        let hashes = rest[prefix..].iter().take_while(|byte| **byte == b'#').count();
        let open = prefix + hashes + 1;
        if rest.get(prefix + hashes) != Some(&b'"') || (hashes > 0 && !raw) {
            return None;
        }
        if !raw {
            return Some((open, open + quoted(&rest[open..])));
        }
        let end = format!("\"{}", "#".repeat(hashes));
        let inside = &rest[open..];
        let length = inside.windows(end.len()).position(|window| window == end.as_bytes());
        Some((open, open + length.unwrap_or(inside.len())))
    }
}

/// Length of a quoted string's inside.
fn quoted(inside: &[u8]) -> usize {
    let mut at = 0;
    while at < inside.len() && inside[at] != b'"' {
        at += if inside[at] == b'\\' { 2 } else { 1 };
    }
    at.min(inside.len())
}

fn block_comment(rest: &[u8]) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// Length of a character literal with its quotes; `None` for a lifetime.
fn char_literal(rest: &[u8]) -> Option<usize> {
    if rest.first() != Some(&b'\'') {
        return None;
    }
    if rest.get(1) == Some(&b'\\') {
        let end = rest.iter().skip(3).position(|byte| *byte == b'\'')?;
        return Some(end + 4);
    }
    let text = String::from_utf8_lossy(&rest[1..rest.len().min(6)]).into_owned();
    let first = text.chars().next()?;
    (rest.get(1 + first.len_utf8()) == Some(&b'\'')).then_some(first.len_utf8() + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        Source::new("a/src/b.rs", text).code.join("\n")
    }

    #[test]
    fn comments_and_literals_are_blanked_and_lengths_kept() {
        assert_eq!(code("a // b\nc"), "a     \nc");
        assert_eq!(code("a /* b /* c */ d */ e"), "a                   e");
        assert_eq!(code(r#"f("a\"{b")"#), r#"f("     ")"#);
        assert_eq!(code(r##"f(r#"a"b"#)"##), r##"f(r#"   "#)"##);
        assert_eq!(code("b\"{\" c'{'"), "b\" \" c' '");
        assert_eq!(code(r"'\'' '\u{1b}' '{'"), r"'  ' '      ' ' '");
    }

    #[test]
    fn lifetimes_and_raw_names_are_no_literals() {
        assert_eq!(code("fn f<'a>(x: &'a str) {}"), "fn f<'a>(x: &'a str) {}");
        assert_eq!(code("let r#type = bar(r, b);"), "let r#type = bar(r, b);");
    }

    #[test]
    fn string_literals_are_found_with_their_lines() {
        let source = Source::new("a/src/b.rs", "x(\"one\");\ny(r\"two\", // \"no\"\n b\"three\");");
        assert_eq!(source.strings, [(0, "one".into()), (1, "two".into()), (2, "three".into())]);
    }

    #[test]
    fn a_test_module_is_cut_and_what_follows_is_not() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n";
        let source = Source::new("a/src/b.rs", text);
        assert_eq!(source.is_test, [false, true, true, true, true, false, false]);
        assert!(source.test_modules.is_empty());
        assert_eq!(source.production().filter(|(_, code)| !code.is_empty()).count(), 2);
    }

    #[test]
    fn only_conditions_that_select_tests_count() {
        let is_test =
            |attribute: &str| Source::new("a/src/b.rs", &format!("{attribute}\nmod m {{}}")).is_test[1];
        assert!(is_test("#[cfg(test)]"));
        assert!(is_test("#[cfg(all(test, not(fuzzing)))]"));
        assert!(!is_test("#[cfg(not(test))]"));
        assert!(!is_test("#[cfg(not(fuzzing))]"));
        assert!(!is_test("#[cfg(feature = \"test\")]"));
        assert!(!is_test("#[cfg(latest)]"));
    }

    #[test]
    fn further_attributes_and_signatures_belong_to_the_item() {
        let text = "#[cfg(test)]\n#[allow(x)]\nfn a(b: [u8; 2]) {\n}\nfn c() {}";
        assert_eq!(Source::new("a/src/b.rs", text).is_test, [true, true, true, true, false]);
    }

    #[test]
    fn outer_test_modules_are_named() {
        let source = Source::new("a/src/b.rs", "#[cfg(test)]\nmod tests;\nfn a() {}");
        assert_eq!(source.test_modules, ["a/src/b/tests"]);
        assert_eq!(source.is_test, [true, true, false]);
        let text = "#[cfg(test)]\n#[path = \"b_tests.rs\"]\nmod tests;";
        assert_eq!(Source::new("a/src/b.rs", text).test_modules, ["a/src/b_tests"]);
        assert_eq!(module_stem("a/src/b/mod.rs", "tests"), "a/src/b/tests");
        assert_eq!(module_stem("a/src/lib.rs", "tests"), "a/src/tests");
    }

    #[test]
    fn places_of_tests() {
        for path in
            ["tests/tests/tidy.rs", "fabric/tests/shm.rs", "tests/src/rigs/mod.rs", "fuzz/fuzz_targets/a.rs"]
        {
            assert!(is_test_path(path), "{path}");
        }
        for path in ["tests/src/suites/mod.rs", "fabric/src/tests_of.rs"] {
            assert!(!is_test_path(path), "{path}");
        }
    }

    #[test]
    fn whole_words_only() {
        assert_eq!(words("unsafe_code unsafe {", "unsafe").collect::<Vec<_>>(), [12]);
        assert_eq!(words("not_unsafe", "unsafe").count(), 0);
    }

    #[test]
    fn an_unfinished_file_is_read_to_its_end() {
        for text in ["\"open", "/* open", "r#\"open", "'", "#[cfg(test)]", "#[cfg(test", "fn f() {"] {
            assert_eq!(code(text).len(), text.len());
        }
    }
}

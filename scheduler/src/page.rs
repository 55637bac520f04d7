//! The live page: a document, its style and its scripts, which look at `/status` and show it. All of it is part of the
//! program: a browser loads nothing from elsewhere. It must not hold anything that changes.

use daemon::http::Document;

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// What `GET /` gives, and what that needs.
pub(crate) static DOCUMENTS: [Document; 5] = [
    Document { path: "/", content_type: "text/html; charset=utf-8", body: include_str!("page/page.html") },
    Document {
        path: "/page.css",
        content_type: "text/css; charset=utf-8",
        body: include_str!("page/page.css"),
    },
    Document { path: "/page.js", content_type: SCRIPT, body: include_str!("page/page.js") },
    Document { path: "/words.js", content_type: SCRIPT, body: include_str!("page/words.js") },
    Document { path: "/icon.svg", content_type: "image/svg+xml", body: include_str!("page/icon.svg") },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_loads_what_is_there_and_nothing_from_elsewhere() {
        let page = DOCUMENTS[0].body;
        for document in &DOCUMENTS[1..] {
            let name = document.path.trim_start_matches('/');
            let loaded_by = DOCUMENTS.iter().any(|other| other.body.contains(&format!("{name}\"")));
            assert!(loaded_by, "{name} is loaded by nobody");
        }
        for document in &DOCUMENTS {
            let body = document.body.replace("http://www.w3.org/2000/svg", "");
            assert!(!body.contains("http://") && !body.contains("https://"), "{}", document.path);
            for word in ["innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("] {
                assert!(!body.contains(word), "{}: {word}", document.path);
            }
        }
        assert!(!page.contains("style=") && !page.contains("onclick"), "the policy forbids both");
    }
}

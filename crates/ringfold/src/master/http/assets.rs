//! The files of the web page. They are embedded: the page needs no other server.

use super::response::Response;

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Path, type and text of each file.
const FILES: &[(&str, &str, &str)] = &[
    ("/", "text/html; charset=utf-8", include_str!("../../../web/index.html")),
    ("/style.css", "text/css; charset=utf-8", include_str!("../../../web/style.css")),
    ("/app.js", SCRIPT, include_str!("../../../web/app.js")),
    ("/connection.js", SCRIPT, include_str!("../../../web/connection.js")),
    ("/demo.js", SCRIPT, include_str!("../../../web/demo.js")),
    ("/format.js", SCRIPT, include_str!("../../../web/format.js")),
    ("/operator.js", SCRIPT, include_str!("../../../web/operator.js")),
    ("/plot.js", SCRIPT, include_str!("../../../web/plot.js")),
    ("/ring.js", SCRIPT, include_str!("../../../web/ring.js")),
    ("/tables.js", SCRIPT, include_str!("../../../web/tables.js")),
    ("/icon.svg", "image/svg+xml", include_str!("../../../web/icon.svg")),
];

/// The file at a path.
pub(super) fn find(path: &str) -> Option<Response> {
    let (_, content_type, text) = FILES.iter().find(|(at, ..)| *at == path)?;
    Some(Response::asset(content_type, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_that_a_file_names_is_there_and_none_is_elsewhere() {
        for (at, _, text) in FILES {
            let is_path = |text: &&str| {
                (text.starts_with("./") || text.starts_with('/')) && !text.contains(char::is_whitespace)
            };
            for named in text.split(['"', '\'', '`']).filter(is_path) {
                let path = named.strip_prefix('.').unwrap_or(named);
                let is_api = path.starts_with("/api/") || path.starts_with("/metrics");
                assert!(is_api || find(path).is_some(), "{at} names {named}");
            }
            assert!(!text.contains("innerHTML"), "{at}: text of peers must not become HTML");
            let urls = text.matches("https://").count()
                + text.replace("http://www.w3.org", "").matches("http://").count();
            assert_eq!(urls, 0, "{at} names another server");
        }
    }
}

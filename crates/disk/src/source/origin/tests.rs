//! Who is told secrets, where redirections may lead, and how long failures are forgiven.

use proptest::prelude::*;

use super::*;

#[test]
fn secrets_stay_with_the_server_they_were_given_for() {
    let check = |from: &str, to: &str, expect: bool| {
        let (from, to) = (Url::parse(from).unwrap(), Url::parse(to).unwrap());
        assert_eq!(trusted(&from, &to), expect, "{from} -> {to}");
    };
    check("http://a/x", "http://a/y", true);
    check("http://a/x", "https://a/x", true);
    check("http://a:80/x", "http://a/x", true);
    check("https://a:443/x", "https://a/x", true);
    check("https://a/x", "http://a/x", false);
    check("https://a/x", "https://a:8443/x", false);
    check("http://a:8080/x", "https://a:8443/x", false);
    check("https://a/x", "https://b.a/x", false);
    check("https://a/x", "https://b/x", false);
}

#[test]
fn redirections_lead_to_web_servers_only() {
    let from = Url::parse("https://a/dir/x").unwrap();
    assert_eq!(follow(&from, "y").unwrap().as_str(), "https://a/dir/y");
    assert_eq!(follow(&from, "//b/y").unwrap().as_str(), "https://b/y");
    assert_eq!(follow(&from, "http://me:secret@b/y").unwrap().as_str(), "http://b/y");
    for location in ["file:///etc/passwd", "ftp://b/y", "data:,x", "http://", "gopher://b"] {
        assert!(follow(&from, location).is_err(), "{location}");
    }
}

#[test]
fn headers_are_lines_with_a_colon() {
    let (name, value) = header_of("X-Auth: a:b").unwrap();
    assert_eq!((name.as_str(), value.to_str().unwrap()), ("x-auth", "a:b"));
    for (line, shown) in [("secret", "\"\""), ("X Y: z", "\"X Y\""), ("X: a\r\nY: b", "\"X\"")] {
        let error = header_of(line).unwrap_err().to_string();
        assert!(error.contains(shown) && !error.contains("secret"), "{error}");
    }
}

#[test]
fn pauses_double_and_end() {
    let patience = Patience {
        first: Duration::from_millis(100),
        longest: Duration::from_millis(300),
        attempts: 5,
        ..Patience::default()
    };
    let error = |again| Error::Status { url: String::new(), status: StatusCode::BAD_GATEWAY, again };
    let mut tries = Tries::new(patience);
    let mut pauses = Vec::new();
    while let Some(pause) = tries.pause(&error(None)) {
        pauses.push(pause.as_millis());
    }
    assert_eq!(pauses, [100, 200, 300, 300]);
    let mut tries = Tries::new(patience);
    assert_eq!(tries.pause(&error(Some(Duration::from_secs(2)))).unwrap().as_secs(), 2);
    let refused = Error::Status { url: String::new(), status: StatusCode::NOT_FOUND, again: None };
    assert_eq!(tries.pause(&refused), None);
}

proptest! {
    /// A web server, to whom nobody is introduced, or nowhere.
    #[test]
    fn wherever_a_server_sends_us(location in "[a-z]{0,5}:?/{0,3}[a-z:@.#?%0-9\\[\\]-]{0,30}|\\PC{0,40}") {
        let from = Url::parse("https://me:secret@a.lan/dir/x").unwrap();
        if let Ok(to) = follow(&from, &location) {
            prop_assert!(matches!(to.scheme(), "http" | "https") && to.host().is_some());
            prop_assert_eq!((to.username(), to.password()), ("", None));
            prop_assert!(!trusted(&from, &to) || to.host() == from.host());
        }
    }
}

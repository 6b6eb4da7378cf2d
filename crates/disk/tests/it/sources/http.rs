//! Web servers: whole, in ranges, dropped, changed, redirected, silent.

use std::time::Duration;

use disk::Source;
use disk::source::{Connection, Patience, Proxies, Web, web};

use super::server::{Reply, Request, Server};
use super::{chain, connection, pattern, read};

fn plain(url: String) -> Web {
    Web { url, ..Web::default() }
}

#[tokio::test]
async fn a_file_is_read_from_any_offset() {
    let bytes = pattern(100_000);
    let served = bytes.clone();
    let server = Server::start(move |request| Reply::file(request, &served).header("etag", "\"one\"")).await;
    for offset in [0, 1, 4096, 99_999, 100_000] {
        let source = web(&plain(server.url("/disk.img")), &connection()).await.unwrap();
        assert_eq!((source.size(), source.ranged()), (Some(100_000), true));
        assert!(source.identity().unwrap().contains("\"one\""));
        assert_eq!(read(source, offset).await.unwrap(), bytes[offset as usize..], "{offset}");
    }
}

#[tokio::test]
async fn servers_without_ranges_and_lengths_are_read_too() {
    let bytes = pattern(5000);
    let served = bytes.clone();
    let server = Server::start(move |_| Reply::new(200, served.clone())).await;
    let source = web(&plain(server.url("/")), &connection()).await.unwrap();
    assert_eq!((source.size(), source.ranged()), (Some(5000), false));
    assert_eq!(read(source, 0).await.unwrap(), bytes);

    let served = bytes.clone();
    let server = Server::start(move |_| Reply::new(200, served.clone()).chunked()).await;
    let source = web(&plain(server.url("/")), &connection()).await.unwrap();
    assert_eq!((source.size(), source.ranged()), (None, false));
    assert_eq!(read(source, 0).await.unwrap(), bytes);

    let server = Server::start(|request| Reply::file(request, b"")).await;
    let source = web(&plain(server.url("/empty")), &connection()).await.unwrap();
    assert_eq!(source.size(), Some(0));
    assert_eq!(read(source, 0).await.unwrap(), b"");
}

#[tokio::test]
async fn a_connection_dropped_at_any_offset_is_continued() {
    let bytes = pattern(257);
    for ranged in [true, false] {
        for cut in 0..bytes.len() {
            let served = bytes.clone();
            let server = Server::start(move |request| {
                let reply = match ranged {
                    true => Reply::file(request, &served),
                    false => Reply::new(200, served.clone()),
                };
                let reply = reply.header("last-modified", "Mon, 01 Jan 2024 00:00:00 GMT");
                if request.number == 0 { reply.cut(cut) } else { reply }
            })
            .await;
            let source = web(&plain(server.url("/")), &connection()).await.unwrap();
            assert_eq!(read(source, 0).await.unwrap(), bytes, "ranged {ranged}, dropped after {cut}");
            let second = server.seen().pop().unwrap();
            assert_eq!(second.from(), (ranged && cut > 0).then_some(cut));
            assert_eq!(second.headers.contains_key("if-range"), ranged && cut > 0);
        }
    }
}

#[tokio::test]
async fn another_version_is_noticed() {
    let check = async |later: fn(&Request) -> Reply| {
        let server = Server::start(move |request| match request.number {
            0 => Reply::file(request, &pattern(300)).header("etag", "\"one\"").cut(100),
            _ => later(request),
        })
        .await;
        let source = web(&plain(server.url("/disk.img")), &connection()).await.unwrap();
        let error = read(source, 0).await.unwrap_err();
        assert!(error.to_string().ends_with("/disk.img changed while it was read; import it again"), "{error}");
        assert_eq!(server.seen().len(), 2);
    };
    // The whole of another version, as If-Range asks for; a range of it, by a server that ignores the condition; another length.
    check(|_| Reply::new(200, pattern(300)).header("etag", "\"two\"")).await;
    check(|request| Reply::file(request, &pattern(300)).header("etag", "\"two\"")).await;
    check(|request| Reply::file(request, &pattern(301))).await;
}

#[tokio::test]
async fn a_server_that_lies_about_ranges_is_not_believed() {
    let bytes = pattern(300);
    let served = bytes.clone();
    let server = Server::start(move |request| match request.number {
        0 => Reply::file(request, &served).cut(100),
        _ => Reply::new(206, &served[50..]).header("content-range", "bytes 50-299/300"),
    })
    .await;
    let source = web(&plain(server.url("/")), &connection()).await.unwrap();
    let error = read(source, 0).await.unwrap_err().to_string();
    assert!(error.contains("was asked for the bytes from 100 and answered with bytes 50-299/300"), "{error}");

    // One that forgets that it knows ranges sends the whole, of which the rest is taken.
    let served = bytes.clone();
    let server = Server::start(move |request| match request.number {
        0 => Reply::file(request, &served).cut(100),
        _ => Reply::new(200, served.clone()),
    })
    .await;
    let source = web(&plain(server.url("/")), &connection()).await.unwrap();
    assert_eq!(read(source, 0).await.unwrap(), bytes);
}

#[tokio::test]
async fn a_body_that_never_gets_whole_is_an_error() {
    let server = Server::start(|_| Reply::new(200, pattern(100)).header("content-length", "200")).await;
    let source = web(&plain(server.url("/disk.img")), &connection()).await.unwrap();
    let error = read(source, 0).await.unwrap_err();
    assert!(chain(&error).contains("/disk.img"), "{}", chain(&error));
    assert_eq!(server.seen().len(), 4, "as often as patience allows");

    let server = Server::start(|_| Reply::new(200, pattern(1000)).chunked().cut(500)).await;
    let source = web(&plain(server.url("/")), &connection()).await.unwrap();
    let error = read(source, 0).await.unwrap_err().to_string();
    assert!(error.contains("broke off after 500 bytes, and it has neither a length nor a validator"), "{error}");
}

#[tokio::test]
async fn refusals_say_what_the_server_said() {
    for (status, expect, asked) in [
        (404, "expected status code 200, got 404. Status: 404 Not Found", 1),
        (403, "expected status code 200, got 403. Status: 403 Forbidden", 1),
        (401, "expected status code 200, got 401. Status: 401 Unauthorized", 1),
        (204, "expected status code 200, got 204. Status: 204 No Content", 1),
        (500, "expected status code 200, got 500. Status: 500 Internal Server Error", 4),
    ] {
        let server = Server::start(move |_| Reply::new(status, "")).await;
        let error = web(&plain(server.url("/missing")), &connection()).await.err().unwrap();
        assert_eq!(error.to_string(), expect);
        assert_eq!(server.seen().len(), asked, "{status}");
    }
}

#[tokio::test]
async fn a_server_that_recovers_is_asked_again() {
    let server = Server::start(|request| match request.number {
        0 => Reply::new(503, "").header("retry-after", "0"),
        1 => Reply::file(request, &pattern(500)).cut(100),
        2 => Reply::new(502, ""),
        _ => Reply::file(request, &pattern(500)),
    })
    .await;
    let source = web(&plain(server.url("/")), &connection()).await.unwrap();
    assert_eq!(read(source, 0).await.unwrap(), pattern(500));
}

#[tokio::test]
async fn silence_ends() {
    let quick = Patience {
        answer: Duration::from_millis(500),
        idle: Duration::from_millis(500),
        attempts: 2,
        ..connection().patience
    };
    let impatient = Connection { patience: quick, ..Connection::default() };
    // Accepts and says nothing.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let error = web(&plain(url), &impatient).await.err().unwrap().to_string();
    assert!(error.contains("did not answer within 0.5 s"), "{error}");
    // Stops in the middle: the rest is asked for on another connection.
    let server = Server::start(|request| match request.number {
        0 => Reply::file(request, &pattern(500)).hang(100),
        _ => Reply::file(request, &pattern(500)),
    })
    .await;
    let source = web(&plain(server.url("/")), &impatient).await.unwrap();
    assert_eq!(read(source, 0).await.unwrap(), pattern(500));
}

#[tokio::test]
async fn redirections_are_followed_without_secrets() {
    let other = Server::start(|request| Reply::file(request, &pattern(500))).await;
    let to = other.url("/real?signature=s");
    let server = Server::start(move |request| match request.target.as_str() {
        "/disk.img" => Reply::redirect("/moved"),
        _ => Reply::redirect(to.clone()),
    })
    .await;
    let asked = Web {
        url: server.url("/disk.img"),
        basic: Some(("me".into(), "secret".into())),
        headers: vec!["X-Open: o".into(), "Cookie: c".into()],
        secret_headers: vec!["X-Secret: s".into()],
    };
    let source = web(&asked, &connection()).await.unwrap();
    assert_eq!(read(source, 0).await.unwrap(), pattern(500));
    for request in server.seen() {
        assert_eq!(request.header("authorization"), "Basic bWU6c2VjcmV0");
        assert_eq!((request.header("x-secret"), request.header("cookie")), ("s", "c"));
    }
    let reached = other.seen().pop().unwrap();
    assert_eq!((reached.target.as_str(), reached.header("x-open")), ("/real?signature=s", "o"));
    for name in ["authorization", "x-secret", "cookie"] {
        assert_eq!(reached.header(name), "", "{name} went to another server");
    }
}

#[tokio::test]
async fn redirections_end() {
    let server = Server::start(|request| Reply::redirect(format!("/{}", request.number))).await;
    let error = web(&plain(server.url("/start")), &connection()).await.err().unwrap().to_string();
    assert!(error.ends_with("/start redirects more than 10 times"), "{error}");
    assert_eq!(server.seen().len(), 11);

    let server = Server::start(|_| Reply::redirect("file:///etc/passwd")).await;
    let error = web(&plain(server.url("/start")), &connection()).await.err().unwrap().to_string();
    assert!(error.ends_with("redirects to \"file:///etc/passwd\", which is not an http or https address"), "{error}");
}

#[tokio::test]
async fn names_and_passwords_in_the_address_are_used_and_not_shown() {
    let server = Server::start(|request| match request.header("authorization") {
        "Basic bWU6YSBi" => Reply::file(request, b"content"),
        _ => Reply::new(401, ""),
    })
    .await;
    let url = format!("http://me:a%20b@127.0.0.1:{}/disk.img", server.port);
    let source = web(&plain(url), &connection()).await.unwrap();
    assert_eq!(read(source, 0).await.unwrap(), b"content");
    let refused = web(&plain("http://me:secret@127.0.0.1:1/disk.img?token=secret".into()), &connection()).await;
    let error = chain(&refused.err().unwrap());
    assert!(error.contains("http://127.0.0.1:1/disk.img") && !error.contains("secret"), "{error}");
}

#[tokio::test]
async fn proxies_are_used_but_for_their_exceptions() {
    let proxy = Server::start(|request| Reply::file(request, b"by proxy")).await;
    let server = Server::start(|request| Reply::file(request, b"direct")).await;
    let through = |none: &str| Connection {
        proxies: Proxies { http: Some(proxy.url("")), https: None, none: Some(none.into()) },
        ..connection()
    };
    let source = web(&plain("http://images.invalid/disk.img".into()), &through("example.com")).await.unwrap();
    assert_eq!(read(source, 0).await.unwrap(), b"by proxy");
    assert_eq!(proxy.seen()[0].target, "http://images.invalid/disk.img");
    let source = web(&plain(server.url("/")), &through("127.0.0.0/8,.invalid")).await.unwrap();
    assert_eq!(read(source, 0).await.unwrap(), b"direct");
}

#[tokio::test]
async fn a_reader_that_is_dropped_ends_its_connection() {
    let server = Server::start(|request| Reply::file(request, &pattern(4 << 20))).await;
    let source = web(&plain(server.url("/")), &connection()).await.unwrap();
    let bytes = tokio::task::spawn_blocking(move || {
        let mut first = [0; 100];
        let mut reader = source.open(1 << 20).unwrap();
        std::io::Read::read_exact(&mut reader, &mut first).unwrap();
        drop(reader);
        // Several at once, from different places.
        let mut readers: Vec<_> = (0..4).map(|i| source.open(i << 20).unwrap()).collect();
        for reader in readers.iter_mut().rev() {
            std::io::Read::read_exact(reader, &mut first).unwrap();
        }
        first
    });
    assert_eq!(bytes.await.unwrap(), pattern(100)[..]);
}

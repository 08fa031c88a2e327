//! Calls in general: faults, deadlines, caps, retries, kept connections, transports.

use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use monky_deployd::drivers::http::{Ask, BODY_CAP, Http, Keep, Repeat};
use monky_deployd::drivers::transport::Transport;
use monky_deployd::effects::CallFault;

use crate::support::{
    Closed, Knows, PLAIN, Reply, Wire, answer, client, get, nonsense, ok, post_once, proxy, unreachable,
};

fn raw(text: &str) -> Reply {
    Reply::SendAndClose(text.as_bytes().to_vec())
}

#[test]
fn a_refused_connection_is_told_with_its_place() {
    let closed = Closed::new();
    let at = closed.at;
    let told = unreachable(client(&format!("http://{at}"), Transport::System, 2000).call(&PLAIN, &get("/")));
    assert!(told.contains(&format!("testbed at {at}, dialled directly: connection refused")), "{told}");
    assert!(told.ends_with("nothing listens there"), "{told}");
}

#[test]
fn a_get_is_sent_again_after_a_reset_and_then_answers() {
    let wire = Wire::http(|n, _| if n == 0 { Reply::Reset } else { ok("{}") });
    assert_eq!(wire.client().call(&PLAIN, &get("/x")).unwrap().status, 200);
    assert_eq!(wire.requests().len(), 2);
}

#[test]
fn a_get_is_sent_three_times_at_most() {
    let wire = Wire::http(|_, _| Reply::Reset);
    let told = unreachable(wire.client().call(&PLAIN, &get("/x")));
    assert!(told.contains("connection reset before the answer was complete"), "{told}");
    assert_eq!(wire.requests().len(), 3);
}

#[test]
fn a_post_that_must_not_arrive_twice_is_not_sent_again_after_a_reset_or_a_503() {
    let wire = Wire::http(|_, _| Reply::Reset);
    unreachable(wire.client().call(&PLAIN, &post_once("/leases")));
    assert_eq!(wire.requests().len(), 1);
    let wire = Wire::http(|_, _| answer(503, "", ""));
    assert_eq!(wire.client().call(&PLAIN, &post_once("/leases")).unwrap().status, 503);
    assert_eq!(wire.requests().len(), 1);
}

#[test]
fn a_post_that_was_refused_before_anything_was_sent_is_tried_again() {
    let closed = Closed::new();
    let at = closed.at;
    let http = client(&format!("http://{at}"), Transport::System, 3000);
    let late = thread::spawn(move || {
        // Between the first try and the last, which comes after at least 400 ms.
        closed.answers_one_after(Duration::from_millis(200));
    });
    assert_eq!(http.call(&PLAIN, &post_once("/leases")).unwrap().status, 200);
    late.join().unwrap();
}

#[test]
fn an_answer_that_ends_early_is_no_answer_wherever_it_ends() {
    for cut in [
        "",
        "HTTP/1.1 200 OK\r\nContent-Le",
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{\"a\"",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"a\":\r\n",
        "HTTP/1.1 403 No\r\nContent-Length: 10\r\n\r\n{\"a\"",
    ] {
        let wire = Wire::http(move |_, _| raw(cut));
        let told = unreachable(wire.client().call(&PLAIN, &get("/")));
        assert!(told.contains("closed the connection before the answer was complete"), "{cut:?}: {told}");
        assert_eq!(wire.requests().len(), 3, "{cut:?}");
    }
}

#[test]
fn json_that_ends_early_without_a_marked_length_is_no_answer() {
    let wire = Wire::http(|_, _| raw("HTTP/1.1 200 OK\r\n\r\n{\"a\":"));
    let http = wire.client();
    let answer = http.call(&PLAIN, &get("/")).unwrap();
    unreachable(http.json::<serde_json::Value>(&PLAIN, &answer));
}

#[test]
fn whatever_is_no_http_is_nonsense_and_asked_only_once() {
    for garbage in ["SSH-2.0-OpenSSH_9.6\r\n\r\n", "\0\0\0\0\r\n\r\n", "HTTP/1.1 nope\r\n\r\n"] {
        let wire = Wire::http(move |_, _| raw(garbage));
        let told = nonsense(wire.client().call(&PLAIN, &get("/")));
        assert!(told.contains("does not answer in HTTP"), "{told}");
        assert_eq!(wire.requests().len(), 1);
    }
}

#[test]
fn what_is_no_json_is_nonsense_without_a_word_of_the_body() {
    for body in ["<html>s3cret</html>", "{\"a\":\"s3cret\"}", "\"s3cret\"", "[1,2"] {
        let wire = Wire::http(move |_, _| answer(200, "Content-Type: text/html\r\n", body));
        let http = wire.client();
        let answer = http.call(&PLAIN, &get("/")).unwrap();
        let told = nonsense(http.json::<Vec<u8>>(&PLAIN, &answer));
        assert!(told.contains("JSON") && told.contains("text/html") && !told.contains("s3cret"), "{told}");
    }
}

#[test]
fn a_redirect_is_an_answer_and_nobody_follows_it() {
    let elsewhere = Wire::http(|_, _| ok("{}"));
    for status in [301, 302, 303, 307, 308] {
        let to = format!("Location: {}/other?token=s3cret\r\n", elsewhere.base());
        let wire = Wire::http(move |_, _| answer(status, &to, ""));
        for ask in [get("/"), post_once("/")] {
            let got = wire.client().call(&PLAIN, &ask).unwrap();
            assert_eq!(got.status, status);
            let words = got.words(&PLAIN);
            assert!(words.as_str().contains("never followed") && !words.as_str().contains("s3cret"), "{words}");
        }
    }
    assert_eq!(elsewhere.connections(), 0);
}

#[test]
fn a_server_that_hangs_is_left_at_the_deadline_of_the_whole_call() {
    let wire = Wire::http(|_, _| Reply::Hang);
    let started = Instant::now();
    let told = unreachable(client(&wire.base(), Transport::System, 1000).call(&PLAIN, &get("/")));
    let took = started.elapsed();
    assert!(told.contains("no complete answer within 1 s"), "{told}");
    assert!((900..10_000).contains(&took.as_millis()), "{took:?}");
}

#[test]
fn a_body_that_drips_is_left_at_the_deadline() {
    for head in ["HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n", "HTTP/1.1 200 OK\r\nX-Slow: "] {
        let wire = Wire::http(move |_, _| {
            let bytes = format!("{head}{}", "x".repeat(50));
            Reply::Drip(bytes.into_bytes(), Duration::from_millis(50))
        });
        let started = Instant::now();
        unreachable(client(&wire.base(), Transport::System, 1000).call(&PLAIN, &get("/")));
        assert!((900..10_000).contains(&started.elapsed().as_millis()), "{:?}", started.elapsed());
    }
}

#[test]
fn retries_share_one_deadline() {
    let wire = Wire::http(|n, _| if n == 0 { Reply::Reset } else { Reply::Hang });
    let started = Instant::now();
    unreachable(client(&wire.base(), Transport::System, 1000).call(&PLAIN, &get("/")));
    assert!((900..10_000).contains(&started.elapsed().as_millis()), "{:?}", started.elapsed());
}

#[test]
fn a_body_above_the_cap_is_nonsense_with_and_without_a_length() {
    let ask = Ask { keep: Keep::Whole(1000), ..get("/") };
    for head in ["Content-Length: 1001\r\n", ""] {
        let wire = Wire::http(move |_, _| raw(&format!("HTTP/1.1 200 OK\r\n{head}\r\n{}", "x".repeat(1001))));
        let told = nonsense(wire.client().call(&PLAIN, &ask));
        assert!(told.contains("more than 1000 bytes"), "{told}");
    }
    let wire = Wire::http(|_, _| ok(&"x".repeat(1000)));
    assert_eq!(wire.client().call(&PLAIN, &ask).unwrap().body.len(), 1000);
}

#[test]
fn an_endless_body_costs_no_more_than_its_cap() {
    let wire = Wire::http(|_, _| {
        let mut bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n".to_vec();
        bytes.resize(12 << 20, b'x');
        raw(&String::from_utf8(bytes).unwrap())
    });
    // Time enough: it is about the cap, not about the deadline.
    nonsense(client(&wire.base(), Transport::System, 60_000).call(&PLAIN, &get("/")));
}

#[test]
fn a_chunked_body_is_put_together() {
    let wire = Wire::http(|_, _| {
        Reply::Send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n[1\r\n3\r\n,2]\r\n0\r\n\r\n".to_vec())
    });
    let http = wire.client();
    let answer = http.call(&PLAIN, &get("/")).unwrap();
    assert_eq!(http.json::<Vec<u8>>(&PLAIN, &answer).unwrap(), [1, 2]);
}

#[test]
fn an_error_is_told_in_the_servers_words_on_one_line_and_scrubbed() {
    let long = "y".repeat(2000);
    let cases = [
        (r#"{"error":{"code":"NOPE","message":"key s3cret\nis bad"}}"#.to_owned(), "NOPE: key *** is bad".to_owned()),
        (r#"{"errors":["1 error occurred:\n\t* s3cret denied\n\n"]}"#.into(), "1 error occurred: * *** denied".into()),
        ("<h1>Bad\u{7} Gateway</h1>".into(), "<h1>Bad Gateway</h1>".into()),
        (format!(r#"{{"error":{{"message":"{long}"}}}}"#), format!("{}…", &long[..299])),
        (long.clone(), format!("{}…", &long[..199])),
        (String::new(), "without a word".into()),
    ];
    for (body, words) in cases {
        let wire = Wire::http(move |_, _| answer(418, "", &body));
        let got = wire.client().call(&PLAIN, &get("/")).unwrap();
        assert_eq!(got.words(&Knows("s3cret")).as_str(), words);
    }
}

#[test]
fn a_huge_error_page_is_still_a_status() {
    let wire = Wire::http(|_, _| answer(500, "", &"x".repeat(1 << 20)));
    let got = wire.client().call(&PLAIN, &get("/")).unwrap();
    assert_eq!((got.status, got.body.len() <= 64 << 10), (500, true));
}

#[test]
fn a_busy_server_is_asked_again_unless_it_says_when() {
    for status in [502, 503, 504] {
        let wire = Wire::http(move |n, _| if n == 0 { answer(status, "", "") } else { ok("{}") });
        assert_eq!(wire.client().call(&PLAIN, &get("/")).unwrap().status, 200);
        let wire = Wire::http(move |_, _| answer(status, "Retry-After: 9\r\n", ""));
        assert_eq!(wire.client().call(&PLAIN, &get("/")).unwrap().retry_after_s, Some(9));
        assert_eq!(wire.requests().len(), 1);
    }
    for status in [400, 403, 404, 429, 500] {
        let wire = Wire::http(move |_, _| answer(status, "", ""));
        assert_eq!(wire.client().call(&PLAIN, &get("/")).unwrap().status, status);
        assert_eq!(wire.requests().len(), 1, "{status}");
    }
}

#[test]
fn retry_after_comes_from_the_header() {
    for (sent, understood) in [("7", Some(7)), ("999999", Some(3600)), ("-3", None), ("soon", None)] {
        let wire = Wire::http(move |_, _| answer(429, &format!("Retry-After: {sent}\r\n"), ""));
        assert_eq!(wire.client().call(&PLAIN, &get("/")).unwrap().retry_after_s, understood, "{sent}");
    }
}

#[test]
fn eight_threads_need_eight_connections_for_any_number_of_calls() {
    let wire = Wire::http(|_, _| ok("{}"));
    let http = wire.client();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    assert_eq!(http.call(&PLAIN, &get("/")).unwrap().status, 200);
                }
            });
        }
    });
    assert_eq!(wire.requests().len(), 160);
    assert!(wire.connections() <= 8, "{}", wire.connections());
}

#[test]
fn a_request_says_who_asks_and_wants_nothing_compressed() {
    let wire = Wire::http(|_, _| ok("{}"));
    wire.client().call(&PLAIN, &get("/a%20b?version=3")).unwrap();
    let request = wire.requests()[0].to_lowercase();
    assert!(request.starts_with("get /a%20b?version=3 http/1.1\r\n"), "{request}");
    assert!(request.contains(&format!("user-agent: monky-deployd/{}\r\n", env!("CARGO_PKG_VERSION"))), "{request}");
    assert!(request.contains(&format!("host: {}\r\n", wire.at)), "{request}");
    assert!(!request.contains("accept-encoding"), "{request}");
}

#[test]
fn a_header_that_cannot_be_sent_is_not_sent_and_its_value_not_told() {
    let wire = Wire::http(|_, _| ok("{}"));
    let ask = Ask { headers: &[("x-vault-token", "s3cret\r\nX-Evil: 1")], ..get("/") };
    let told = nonsense(wire.client().call(&PLAIN, &ask));
    assert!(told.contains("x-vault-token") && !told.contains("s3cret"), "{told}");
    assert_eq!(wire.connections(), 0);
}

#[test]
fn through_a_listener_the_request_stays_the_servers() {
    let wire = Wire::http(|_, _| ok("{}"));
    let http = client("http://tenancy.invalid:8080", proxy(wire.at), 2000);
    assert_eq!(http.call(&PLAIN, &get("/v1")).unwrap().status, 200);
    assert!(wire.requests()[0].to_lowercase().contains("host: tenancy.invalid:8080\r\n"), "{:?}", wire.requests());
}

#[test]
fn a_listener_that_is_just_starting_is_waited_for() {
    let closed = Closed::new();
    let at = closed.at;
    let http = client("http://tenancy.invalid", proxy(at), 5000);
    let late = thread::spawn(move || {
        closed.answers_one_after(Duration::from_millis(700));
    });
    assert_eq!(http.call(&PLAIN, &post_once("/")).unwrap().status, 200);
    late.join().unwrap();
}

#[test]
fn a_listener_is_waited_for_once_a_tick_and_within_the_deadline() {
    let closed = Closed::new();
    let at = closed.at;
    let http = client("http://tenancy.invalid", proxy(at), 1000);
    let started = Instant::now();
    let told = unreachable(http.call(&PLAIN, &get("/")));
    assert!((900..10_000).contains(&started.elapsed().as_millis()), "{:?}", started.elapsed());
    assert!(told.contains(&format!("tenancy.invalid:80, dialled through the listener {at}")), "{told}");

    let http = client("http://tenancy.invalid", proxy(at), 9000);
    let started = Instant::now();
    unreachable(http.call(&PLAIN, &get("/")));
    let first = started.elapsed();
    let told = unreachable(http.call(&PLAIN, &get("/")));
    let second = started.elapsed() - first;
    assert!(told.contains("connection refused") && told.contains("start the tunnel's proxy"), "{told}");
    assert!((2000..4000).contains(&first.as_millis()) && second.as_millis() < 1500, "{first:?} {second:?}");
}

#[test]
fn a_listener_that_accepts_and_closes_points_to_the_tunnel() {
    let wire = Wire::wrapped(|_| None::<std::net::TcpStream>, |_, _| Reply::Hang);
    let told = unreachable(client("http://tenancy.invalid", proxy(wire.at), 2000).call(&PLAIN, &get("/")));
    assert!(told.contains("accepts first and closes when its own dial fails"), "{told}");
}

/// Whether a call that must not arrive twice is known not to have arrived at all.
fn never_sent(http: &Http) -> bool {
    match http.call(&PLAIN, &post_once("/leases")) {
        Err(CallFault::Unreachable { never_sent, .. }) => never_sent,
        Err(other) => panic!("not unreachable: {other:?}"),
        Ok(answer) => panic!("an answer: {}", answer.status),
    }
}

#[test]
fn what_never_left_the_box_is_known_from_what_may_have_arrived() {
    let refused = Closed::new();
    assert!(never_sent(&client(&format!("http://{}", refused.at), Transport::System, 2000)), "refused");
    assert!(never_sent(&client("http://tenancy.invalid", proxy(refused.at), 1000)), "no listener");
    assert!(never_sent(&client("http://nobody.invalid", Transport::System, 2000)), "no such name");
    assert!(never_sent(&client("http://127.0.0.1:1", Transport::Sdk, 2000)), "no such transport");
    let plain = Wire::wrapped(|_| None::<std::net::TcpStream>, |_, _| Reply::Hang);
    let secure = client(&format!("https://{}", plain.at), Transport::System, 2000);
    assert!(never_sent(&secure), "no TLS there");

    let hangs = Wire::http(|_, _| Reply::Hang);
    assert!(!never_sent(&client(&hangs.base(), Transport::System, 500)), "no answer in time");
    let closes = Wire::http(|_, _| Reply::SendAndClose(Vec::new()));
    assert!(!never_sent(&closes.client()), "closed without an answer");
}

#[test]
fn a_name_that_nobody_knows_is_told_as_such() {
    let told = unreachable(client("http://nobody.invalid", Transport::System, 2000).call(&PLAIN, &get("/")));
    assert!(told.contains("the name nobody.invalid cannot be resolved: "), "{told}");
}

#[test]
fn the_sdk_transport_names_the_ones_that_work() {
    let told = unreachable(client("http://127.0.0.1:1", Transport::Sdk, 2000).call(&PLAIN, &get("/")));
    assert!(told.contains("transport: proxy"), "{told}");
}

#[test]
fn a_streamed_body_is_lent_as_it_arrives_and_a_cut_off_one_is_no_answer() {
    let read_all = |body: &mut dyn Read| {
        let mut bytes = Vec::new();
        let _ = body.read_to_end(&mut bytes);
        bytes.len()
    };
    let wire = Wire::http(|_, _| answer(200, "X-Bundle-Sha: abc\r\n", &"x".repeat(100_000)));
    let (length, headers) = wire.client().stream(&PLAIN, &get("/"), 1 << 20, read_all).unwrap();
    assert_eq!((length, headers["x-bundle-sha"].to_str().unwrap()), (100_000, "abc"));

    nonsense(wire.client().stream(&PLAIN, &get("/"), 99_999, read_all));
    let lent = AtomicUsize::new(0);
    let cut = Wire::http(|_, _| raw("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{\"a\""));
    unreachable(cut.client().stream(&PLAIN, &get("/"), BODY_CAP, |body| {
        lent.fetch_add(1, Ordering::SeqCst);
        read_all(body)
    }));
    assert_eq!(lent.into_inner(), 3, "each try lends it anew");

    let missing = Wire::http(|_, _| answer(404, "", r#"{"error":{"code":"NO_BUNDLE","message":"gone"}}"#));
    match missing.client().stream(&PLAIN, &get("/"), BODY_CAP, read_all) {
        Err(CallFault::Status { status: 404, detail, .. }) => assert_eq!(detail.as_str(), "NO_BUNDLE: gone"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_body_that_its_reader_refuses_midway_is_the_readers_verdict() {
    let wire = Wire::http(|_, _| ok(&"x".repeat(100_000)));
    let (made, _) = wire.client().stream(&PLAIN, &get("/"), BODY_CAP, |body| body.read(&mut [0; 10]).unwrap()).unwrap();
    assert_eq!(made, 10);
}

#[test]
fn a_repeatable_post_is_sent_again_with_the_same_body() {
    let wire = Wire::http(|n, _| if n == 0 { Reply::Reset } else { ok("") });
    let ask =
        Ask { body: Some(b"{\"report_id\":\"k\"}"), repeat: Repeat::Safe, keep: Keep::Nothing, ..get("/reports") };
    wire.client().call(&PLAIN, &ask).unwrap();
    let requests = wire.requests();
    assert_eq!(requests.len(), 2);
    assert!(requests.iter().all(|request| request.ends_with("{\"report_id\":\"k\"}")), "{requests:?}");
}

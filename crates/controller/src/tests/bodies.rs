//! Bodies that nobody means.

use super::*;

#[test]
fn list_is_no_request() {
    let place = TestFolder::new("list");
    let running = Running::new(&place);
    let token = running.folder.admin().unwrap().token;
    let (status, body) = running.raw(&format!(
        "PUT /v1/settings HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Authorization: Bearer {}\r\nContent-Length: 6\r\n\r\n[null]",
        token.secret()
    ));
    assert_eq!(status, "HTTP/1.1 400 Bad Request");
    assert!(error_of(body.as_bytes()).contains("expected a JSON object"), "{body}");
    let (status, body) = running.raw(&format!(
        "PUT /v1/settings HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Authorization: Bearer {}\r\nContent-Length: 27\r\n\r\n{{\"jumpstart\": [null, null]}}",
        token.secret()
    ));
    assert_eq!(status, "HTTP/1.1 400 Bad Request");
    assert!(error_of(body.as_bytes()).contains("jumpstart: expected a JSON object"), "{body}");
}

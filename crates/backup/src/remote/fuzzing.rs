//! Reads frames from an arbitrary peer, and makes one frame of each kind.

use bytes::Bytes;

use super::frame::{Answer, Frame, PROTOCOL, REQUEST_BYTES_MAX, Request, is_name};

/// Reads frames as requests and as answers until one is wrong; returns true if any was right. What decodes must survive
/// being encoded and decoded again.
pub(crate) fn frames(bytes: &[u8]) -> bool {
    requests(bytes) | answers(bytes)
}

fn requests(mut bytes: &[u8]) -> bool {
    let mut any = false;
    while let Ok(Some((frame, ()))) = Frame::read(&mut bytes, REQUEST_BYTES_MAX, |_| ()) {
        let Ok(request) = Request::decode(&frame) else { break };
        let again = encoded(request.encode(frame.number));
        assert!(Request::decode(&again).is_ok_and(|again| again == request), "a request changes");
        if let Request::Get { name, .. } | Request::Put { name, .. } | Request::Delete { name } = &request {
            assert!(is_name(name) && !name.contains("..") && !name.starts_with('/'), "{name}");
        }
        any = true;
    }
    any
}

fn answers(mut bytes: &[u8]) -> bool {
    let mut any = false;
    while let Ok(Some(frame)) = Frame::read_answer(&mut bytes) {
        let Ok(answer) = Answer::decode(&frame) else { break };
        let again = encoded(answer.encode(frame.number));
        let again = Answer::decode(&again);
        // A text that is too long is cut, and one that is not UTF-8 is mended.
        let is_text = matches!(answer, Answer::Failed(_) | Answer::Refused(_));
        assert!(is_text || again.is_ok_and(|again| again == answer), "an answer changes");
        any = true;
    }
    any
}

fn encoded((mut head, payload): (Vec<u8>, Bytes)) -> Frame {
    head.extend_from_slice(&payload);
    let read = Frame::read(&mut head.as_slice(), REQUEST_BYTES_MAX, |_| ());
    read.ok().flatten().map_or_else(|| Frame { kind: 0, number: 0, body: Bytes::new() }, |(frame, ())| frame)
}

/// Returns one request of each kind.
pub(crate) fn some_requests() -> Vec<Request> {
    let name = || "packs/70".to_owned();
    let bytes = Bytes::from_static(b"pack");
    vec![
        Request::Hello { protocol: PROTOCOL, make: true, version: "1.2".into(), directory: b"/srv".to_vec() },
        Request::Get { name: name(), begin: 48, len: 20 },
        Request::Put { name: name(), bytes: bytes.clone() },
        Request::Create { name: name(), bytes },
        Request::List { folder: "packs".into(), after: Some("6f".into()) },
        Request::Delete { name: name() },
    ]
}

/// Returns one answer of each kind.
pub(crate) fn some_answers() -> Vec<Answer> {
    vec![
        Answer::Welcome,
        Answer::Part { size: 68, bytes: Bytes::from_static(b"part") },
        Answer::Done,
        Answer::Names { more: false, entries: vec![("70".into(), 68)] },
        Answer::Missing,
        Answer::Taken,
        Answer::Failed("no room".into()),
        Answer::Refused("not yours".into()),
    ]
}

/// Returns frames, one after the other.
pub(crate) fn whole(frames: impl Iterator<Item = (Vec<u8>, Bytes)>) -> Vec<u8> {
    frames.fold(Vec::new(), |mut all, (head, payload)| {
        all.extend_from_slice(&head);
        all.extend_from_slice(&payload);
        all
    })
}

/// Returns seeds of [`frames`].
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let requests = || some_requests().into_iter().zip(0..).map(|(one, number)| one.encode(number));
    let answers = || some_answers().into_iter().zip(0..).map(|(one, number)| one.encode(number));
    let one_by_one = requests().chain(answers()).map(|frame| whole(std::iter::once(frame)));
    one_by_one.chain([whole(requests()), whole(answers())]).collect()
}

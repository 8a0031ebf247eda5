//! Readers of a backup behind a socket, and datasets that wait for them.

use std::os::unix::net::UnixListener;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use pagefold_engine::Error;
use pagefold_engine::dataset::{Change, Dataset};
use pagefold_lazy::{Answers, Greeting, Link, LinkError, Lower, Overlay, Token, Wishes, serve};
use parking_lot::Mutex;

use super::common::{Bench, PAGE, noise, pool, read, write};
use super::{BYTES, OBJECTS};

#[test]
fn over_a_socket_it_is_the_same_and_a_new_reader_is_found() {
    let bench = Bench::new(None);
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let (token, other) = (Token::new(&[2; 16], 1), Token::new(&[2; 16], 2));
    let greeting = Greeting { token, patience: Duration::from_secs(5) };
    let start = |idle: u64| {
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        let answers = Arc::new(Answers {
            dataset: bench.lazy(),
            greeting,
            wishes: Mutex::default(),
            figures: Box::new(|| "{}".to_owned()),
        });
        std::thread::spawn(move || serve(&listener, &answers, Some(Duration::from_millis(idle))).unwrap())
    };
    assert!(matches!(Link::open(socket.clone(), token), Err(LinkError::Nobody(_))));
    let first = start(400);
    assert!(matches!(Link::open(socket.clone(), other), Err(LinkError::Other(_))));
    let link = Link::open(socket.clone(), token).unwrap();
    assert_eq!(*link.greeting(), greeting);
    assert_eq!(link.figures().unwrap(), "{}");
    assert_eq!(link.wishes().unwrap(), Wishes::default());
    let wishes = Wishes { hydrate: true, rate: Some(7) };
    link.wish(wishes).unwrap();
    assert_eq!(link.wishes().unwrap(), wishes);
    let (_, target) = pool(2);
    bench.build(&target, "part");
    let part = Overlay::open(target.open_dataset("part").unwrap(), Arc::new(link), true).unwrap();
    assert!(read(&part, 4, 0, 3 << 20) == read(&*bench.original(), 4, 0, 3 << 20));
    // It is damage that is told as such.
    let lost = Link::open(socket.clone(), token).unwrap();
    let mut page = [0; 10];
    assert!(matches!(Lower::read_pages(&lost, 3, 2 * PAGE, 0, &mut page), Err(Error::Corrupt { .. })));
    drop(lost);
    std::thread::scope(|scope| {
        for at in 0..8_u64 {
            let (part, original) = (&part, bench.original());
            scope.spawn(move || {
                assert!(read(part, 3, at << 20, 1 << 20) == read(&*original, 3, at << 20, 1 << 20));
            });
        }
    });
    // With the last absent page the connections go, and who reads the backup ends.
    OBJECTS.iter().for_each(|object| drop(read(&part, *object, 0, BYTES)));
    assert!(part.is_complete());
    first.join().unwrap();
    // After the link is closed nobody waits on it.
    let closed = Arc::new(Link::later(socket.clone(), token, Duration::from_secs(3600)));
    let waiting = Arc::clone(&closed);
    let waits = std::thread::spawn(move || waiting.read_pages(3, PAGE, 0, &mut [0; 10]));
    std::thread::sleep(Duration::from_millis(300));
    assert!(!waits.is_finished());
    closed.close();
    assert!(matches!(waits.join().unwrap(), Err(Error::Io { .. })));
    assert!(Link::later(socket.clone(), token, Duration::ZERO).wishes().is_err(), "nobody is there");
    // One that comes later is found by who waits for it.
    bench.build(&target, "again");
    let second = start(400);
    let link = Link::open(socket.clone(), token).unwrap();
    let part = Overlay::open(target.open_dataset("again").unwrap(), Arc::new(link), true).unwrap();
    drop(second);
    std::fs::remove_file(&socket).unwrap();
    let third = start(400);
    assert!(read(&part, 6, 0, 1 << 20) == read(&*bench.original(), 6, 0, 1 << 20));
    drop(part);
    third.join().unwrap();
}

/// A lower side that fails when it is told to.
struct Ending {
    asked: Sender<()>,
    told: Mutex<Receiver<()>>,
}

impl Lower for Ending {
    fn read_pages(&self, _: u64, _: u32, _: u64, _: &mut [u8]) -> pagefold_engine::Result<()> {
        self.asked.send(()).unwrap();
        self.told.lock().recv().unwrap();
        let source = std::io::Error::other("closed");
        Err(Error::Io { op: "read", device: "the backup".into(), offset: 0, len_bytes: 0, source })
    }
}

#[test]
fn a_page_that_came_while_the_backup_was_asked_is_no_error() {
    let bench = Bench::new(None);
    let (_, target) = pool(2);
    for (name, writable) in [("kept", true), ("passed", false)] {
        bench.build(&target, name);
        let ((asked, is_asked), (tell, told)) = (channel(), channel());
        let lower = Arc::new(Ending { asked, told: Mutex::new(told) });
        let part = Overlay::open(target.open_dataset(name).unwrap(), lower, writable).unwrap();
        // Somebody replaces the whole page, and then the question ends with an error.
        let replaced = |page: u64, data: &[u8]| {
            is_asked.recv().unwrap();
            write(&part, 3, page, data);
            tell.send(()).unwrap();
        };
        let data = noise(8, PAGE as usize);
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| read(&part, 3, 700 * u64::from(PAGE), PAGE as usize));
            replaced(700, &data);
            assert!(reading.join().unwrap() == data);
        });
        let offset = 800 * u64::from(PAGE) + 5;
        std::thread::scope(|scope| {
            let some = Change::Write { object: 3, record_size: PAGE, offset, data: &[1, 2] };
            let part = &part;
            let writing = scope.spawn(move || part.apply(&[some]));
            replaced(800, &data);
            writing.join().unwrap().unwrap();
        });
        let expected = [&data[..5], &[1, 2], &data[7..]].concat();
        assert!(read(&part, 3, offset - 5, PAGE as usize) == expected);
        // A page that is still absent is one.
        tell.send(()).unwrap();
        assert!(matches!(part.read(3, PAGE, 900 * u64::from(PAGE), &mut [0; 10]), Err(Error::Io { .. })));
    }
}

#[test]
fn busy_datasets_leave_connections_to_others() {
    let bench = Bench::new(None);
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let token = Token::new(&[2; 16], 1);
    let answers = Arc::new(Answers {
        dataset: bench.lazy(),
        greeting: Greeting { token, patience: Duration::from_secs(20) },
        wishes: Mutex::default(),
        figures: Box::new(|| "{}".to_owned()),
    });
    let listener = UnixListener::bind(&socket).unwrap();
    let serving =
        std::thread::spawn(move || serve(&listener, &answers, Some(Duration::from_millis(400))).unwrap());
    let links = [0, 1].map(|_| Link::open(socket.clone(), token).unwrap());
    bench.odd.delay_ms.store(500, Ordering::SeqCst);
    let (barrier, original) = (Barrier::new(128), bench.original());
    let all_read = |at: u64| {
        std::thread::scope(|scope| {
            for (link, from) in links.iter().zip([0, 64]) {
                for page in from..from + 64 {
                    let (barrier, original, offset) =
                        (&barrier, &original, (page * 10 + at) * u64::from(PAGE));
                    scope.spawn(move || {
                        barrier.wait();
                        let mut found = vec![0; 100];
                        link.read_pages(3, PAGE, offset, &mut found).unwrap();
                        assert!(found == read(&**original, 3, offset, 100));
                    });
                }
            }
        });
    };
    all_read(0);
    let begun = Instant::now();
    while let Err(error) = Link::open(socket.clone(), token) {
        assert!(begun.elapsed() < Duration::from_secs(10), "{error}");
        std::thread::sleep(Duration::from_millis(50));
    }
    // Who was cut off reads on.
    all_read(1);
    drop(links);
    serving.join().unwrap();
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that carries out requests.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Poll;
use std::thread;

use dwell::executor::{AsyncFile, Executor, Handle, JoinHandle};
use dwell::fork::ForkMark;
use tokio::sync::{mpsc, oneshot};

/// Work for the thread.
type Job = Box<dyn FnOnce(&mut Engine) + Send>;

/// Jobs that are begun before requests have their turn.
const BATCH: usize = 64;

/// What the thread has.
struct Engine {
    tasks: Handle,
    files: HashMap<u64, AsyncFile>,
    /// Requests that go on whether or not anybody waits for them.
    going_on: Vec<JoinHandle<()>>,
}

impl Engine {
    fn keep(&mut self, task: JoinHandle<()>) {
        self.going_on.retain(|task| !task.is_finished());
        self.going_on.push(task);
    }
}

/// The thread's other end. The thread ends with the last of these.
pub(crate) struct Driver {
    jobs: mpsc::UnboundedSender<Job>,
    /// A forked child has no such thread.
    mark: ForkMark,
}

/// A file's name on the thread.
#[derive(Clone, Copy)]
pub(crate) struct Key(u64);

/// What becomes of a request whose future is dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// The device is asked to end it.
    Ends,
    /// It goes on.
    GoesOn,
}

static SHARED: Mutex<Weak<Driver>> = Mutex::new(Weak::new());

impl Driver {
    const THREAD_NAME: &str = "dwell-tokio";

    /// The one of this process; it starts where there is none. May wait for the thread to start.
    pub fn shared() -> io::Result<Arc<Driver>> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = shared.upgrade().filter(|driver| driver.mark.same_process()) {
            return Ok(driver);
        }
        let driver = Arc::new(Driver::start()?);
        *shared = Arc::downgrade(&driver);
        Ok(driver)
    }

    fn start() -> io::Result<Driver> {
        let mark = ForkMark::new()?;
        let (jobs, mut work) = mpsc::unbounded_channel::<Job>();
        let (tell, told) = std::sync::mpsc::channel();
        thread::Builder::new().name(Driver::THREAD_NAME.to_owned()).spawn(move || {
            let executor = match Executor::new() {
                Ok(executor) => executor,
                Err(error) => return drop(tell.send(Err(error))),
            };
            let _ = tell.send(Ok(()));
            executor.block_on(async {
                let (tasks, files, going_on) = (executor.handle(), HashMap::new(), Vec::new());
                let mut engine = Engine { tasks, files, going_on };
                let mut batch = Vec::with_capacity(BATCH);
                while work.recv_many(&mut batch, BATCH).await > 0 {
                    batch.drain(..).for_each(|job| job(&mut engine));
                    engine.tasks.yield_now().await;
                }
                for task in engine.going_on {
                    task.await;
                }
            });
        })?;
        told.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))?;
        Ok(Driver { jobs, mark })
    }

    fn send(&self, job: Job) {
        // If the job cannot be sent, it is dropped with the other end of its channel.
        if self.mark.same_process() {
            let _ = self.jobs.send(job);
        }
    }

    /// Makes a file's requests futures of the thread; `None` where the thread has ended.
    pub async fn add(&self, file: Arc<dwell::File>) -> Option<dwell::Result<Key>> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let key = NEXT.fetch_add(1, Ordering::Relaxed);
        let (tell, told) = oneshot::channel();
        self.send(Box::new(move |engine| {
            let added = engine.tasks.file(file).map(|file| {
                engine.files.insert(key, file);
                Key(key)
            });
            // Nobody knows the name of a file whose opening was given up.
            if tell.send(added).is_err() {
                engine.files.remove(&key);
            }
        }));
        told.await.ok()
    }

    /// Forgets a file; its requests go on.
    pub fn remove(&self, Key(key): Key) {
        self.send(Box::new(move |engine| drop(engine.files.remove(&key))));
    }

    /// Runs a request on the thread, and gives its result; `None` where the thread has ended.
    pub async fn run<T, F, R>(&self, Key(key): Key, dropped: Dropped, request: F) -> Option<T>
    where
        T: Send + 'static,
        F: FnOnce(AsyncFile) -> R + Send + 'static,
        R: Future<Output = T> + 'static,
    {
        let (tell, told) = oneshot::channel();
        self.send(Box::new(move |engine| {
            let Some(file) = engine.files.get(&key).cloned() else { return };
            match dropped {
                Dropped::Ends => engine.tasks.spawn(wanted(file, request, tell)).detach(),
                Dropped::GoesOn => {
                    let task = async move { drop(tell.send(request(file).await)) };
                    let task = engine.tasks.spawn(task);
                    engine.keep(task);
                }
            }
        }));
        told.await.ok()
    }
}

/// Carries out a request as long as somebody waits for it.
async fn wanted<T, F, R>(file: AsyncFile, request: F, mut tell: oneshot::Sender<T>)
where
    F: FnOnce(AsyncFile) -> R,
    R: Future<Output = T>,
{
    if tell.is_closed() {
        return;
    }
    let done = {
        let mut request = pin!(request(file));
        let mut closed = pin!(tell.closed());
        poll_fn(|context| match request.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => closed.as_mut().poll(context).map(|()| None),
        })
        .await
    };
    if let Some(done) = done {
        let _ = tell.send(done);
    }
}

//! A small safe interface to `libdynamo_go.so`: what `include/dynamo_go.h` declares, as far as a router and an engine of a deployment need it.
//!
//! The library is loaded at run time and stays loaded. Handles close themselves; statuses other than `DGO_OK` are [`Error`]s.
//! All types are `Send` and `Sync`, as the C functions may be called from any thread.

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::fmt;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;

/// The status of a call; see `dgo_status` in the header.
pub type Status = i32;
pub const OK: Status = 0;
pub const REQUEST_NOT_FOUND: Status = 5;
pub const TIMEOUT: Status = 12;
pub const CLOSED: Status = 13;
pub const CANCELLED: Status = 18;
pub const ENDED: Status = 23;
const ABI_VERSION: u32 = 1;
const WAIT_MS_MAX: u32 = 100;

/// A call that failed: its status and what it said.
#[derive(Debug, Clone)]
pub struct Error {
    pub status: Status,
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (status {})", self.message, self.status)
    }
}

impl std::error::Error for Error {}

type Result<T> = std::result::Result<T, Error>;

#[repr(C)]
struct RawError {
    struct_size: u32,
    status: Status,
    message: [c_char; 504],
}

impl RawError {
    fn new() -> Self {
        RawError { struct_size: size_of::<Self>() as u32, status: 0, message: [0; 504] }
    }

    fn check(&self, status: Status) -> Result<()> {
        if status == OK {
            return Ok(());
        }
        // SAFETY: the library ends the message with a NUL, and it began as one.
        let message = unsafe { CStr::from_ptr(self.message.as_ptr()) };
        Err(Error { status, message: message.to_string_lossy().into_owned() })
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawString {
    data: *const c_char,
    size: usize,
}

impl RawString {
    const NONE: RawString = RawString { data: ptr::null(), size: 0 };

    fn of(text: Option<&str>) -> Self {
        Self::bytes(text.map(str::as_bytes))
    }

    fn bytes(bytes: Option<&[u8]>) -> Self {
        bytes.map_or(Self::NONE, |b| RawString { data: b.as_ptr().cast(), size: b.len() })
    }
}

#[repr(C)]
struct RawBuffer {
    struct_size: u32,
    reserved: u32,
    data: *mut c_char,
    size: usize,
}

#[repr(C)]
struct RawWorker {
    struct_size: u32,
    dp_start: u32,
    dp_size: u32,
    has_block_size: u32,
    worker_id: u64,
    block_size: i64,
    kv_events: RawString,
    replay: RawString,
    topic: RawString,
    host: RawString,
    taints: *const RawString,
    n_taints: usize,
    max_num_batched_tokens: u64,
    total_kv_blocks: u64,
    adapters: *const RawString,
    n_adapters: usize,
    query: RawString,
}

#[repr(C)]
struct RawRequest {
    struct_size: u32,
    flags: u32,
    lora_name: RawString,
    cache_namespace: RawString,
    block_mm_infos: RawString,
    request_id: RawString,
    worker_id: u64,
    dp_rank: u32,
    strict_priority: u32,
    allowed_worker_ids: *const u64,
    n_allowed_worker_ids: usize,
    routing_constraints: RawString,
    router_config_override: RawString,
    policy_class: RawString,
    session_id: RawString,
    timeout_seconds: f64,
    priority_jump: f64,
    shared_ranges: *const u32,
    n_shared_ranges: usize,
}

/// Where a prompt goes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    struct_size: u32,
    pub dp_rank: u32,
    pub worker_id: u64,
    /// Leading full blocks of the prompt that the rank holds.
    pub overlap_blocks: u32,
    reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawEvent {
    kind: u32,
    flags: u32,
    block_hashes: *const u64,
    n_blocks: usize,
    tokens: *const u32,
    n_tokens: usize,
    parent_hash: u64,
    block_size: u32,
    reserved: u32,
    lora_name: RawString,
    cache_salt: RawString,
    block_mm_infos: RawString,
    medium: RawString,
}

/// What happened to a cache; see `dgo_kv_event`.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// Blocks were added, as a chain: their names, and the tokens of all.
    Stored { block_hashes: &'a [u64], tokens: &'a [u32], block_size: u32, parent: Option<u64> },
    Removed { block_hashes: &'a [u64] },
    Cleared,
}

impl Event<'_> {
    fn raw(&self) -> RawEvent {
        // SAFETY: all zero is every member's default.
        let mut raw: RawEvent = unsafe { std::mem::zeroed() };
        match *self {
            Event::Stored { block_hashes, tokens, block_size, parent } => {
                (raw.kind, raw.flags, raw.parent_hash) = (1, parent.is_some() as u32, parent.unwrap_or(0));
                (raw.block_hashes, raw.n_blocks) = (block_hashes.as_ptr(), block_hashes.len());
                (raw.tokens, raw.n_tokens, raw.block_size) = (tokens.as_ptr(), tokens.len(), block_size);
            }
            Event::Removed { block_hashes } => {
                (raw.kind, raw.block_hashes, raw.n_blocks) = (2, block_hashes.as_ptr(), block_hashes.len());
            }
            Event::Cleared => raw.kind = 3,
        }
        raw
    }
}

// The sizes that the header documents.
const _: () = assert!(size_of::<RawError>() == 512 && size_of::<RawBuffer>() == 24 && size_of::<RawWorker>() == 160);
const _: () = assert!(size_of::<RawRequest>() == 200 && size_of::<Choice>() == 24 && size_of::<RawEvent>() == 120);

type Close = unsafe extern "C" fn(u64, *mut RawError) -> Status;
/// Of a handle: a text, options and a result.
type Make = unsafe extern "C" fn(u64, *const c_char, usize, *const c_char, usize, *mut u64, *mut RawError) -> Status;

struct Functions {
    buffer_free: unsafe extern "C" fn(*mut RawBuffer),
    router_new: unsafe extern "C" fn(i64, *const c_char, usize, *const u64, *mut u64, *mut RawError) -> Status,
    router_close: Close,
    router_add_worker: unsafe extern "C" fn(u64, *const RawWorker, *mut RawError) -> Status,
    router_best_worker:
        unsafe extern "C" fn(u64, *const u32, usize, *const RawRequest, *mut Choice, *mut RawError) -> Status,
    router_free: unsafe extern "C" fn(u64, *const c_char, usize, *mut RawError) -> Status,
    mocker_new: unsafe extern "C" fn(*const c_char, usize, *mut u64, *mut RawError) -> Status,
    mocker_info: unsafe extern "C" fn(u64, *mut RawBuffer, *mut RawError) -> Status,
    mocker_generate:
        unsafe extern "C" fn(u64, *const u32, usize, *const c_char, usize, *mut u64, *mut RawError) -> Status,
    mocker_close: Close,
    stream_fd: unsafe extern "C" fn(u64, *mut c_int, *mut RawError) -> Status,
    stream_next:
        unsafe extern "C" fn(u64, u32, *mut RawBuffer, *mut usize, usize, *mut usize, *mut RawError) -> Status,
    stream_close: Close,
    router_generate: unsafe extern "C" fn(
        u64, *const u32, usize, *const RawRequest, *const c_char, usize, *const c_char, usize, *mut u64, *mut RawError,
    ) -> Status,
    publisher_publish: unsafe extern "C" fn(u64, u32, *const RawEvent, usize, usize, *mut RawError) -> Status,
    publisher_close: Close,
    runtime_new: unsafe extern "C" fn(*const c_char, usize, *mut u64, *mut u64, *mut RawError) -> Status,
    runtime_info: unsafe extern "C" fn(u64, *mut RawBuffer, *mut RawError) -> Status,
    runtime_close: Close,
    runtime_serve: Make,
    runtime_model:
        unsafe extern "C" fn(u64, *const c_char, usize, u64, *const c_char, usize, *mut RawError) -> Status,
    runtime_answer:
        unsafe extern "C" fn(u64, u64, *const c_char, usize, u32, *mut i32, *mut RawError) -> Status,
    runtime_client: unsafe extern "C" fn(u64, *const c_char, usize, *mut u64, *mut RawError) -> Status,
    runtime_call: unsafe extern "C" fn(
        u64, u64, *const c_char, usize, *const c_char, usize, *mut u64, *mut RawError,
    ) -> Status,
    runtime_more: unsafe extern "C" fn(u64, u64, usize, *mut RawError) -> Status,
    runtime_cancel: unsafe extern "C" fn(u64, u64, u32, *mut RawError) -> Status,
    runtime_router: unsafe extern "C" fn(
        u64, *const c_char, usize, i64, *const c_char, usize, *mut u64, *mut RawError,
    ) -> Status,
    runtime_publisher: Make,
}

extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}

/// The library. It is never unloaded.
#[derive(Clone)]
pub struct Library(Arc<Functions>);

impl Library {
    /// Loads the library from a file.
    pub fn load(path: &str) -> Result<Self> {
        const RTLD_NOW: c_int = 2;
        let failed = |message: String| Error { status: -1, message };
        let file = CString::new(path).map_err(|e| failed(e.to_string()))?;
        // SAFETY: the library's constructors may run in any process; the types are those of the header, whose version is compared.
        unsafe {
            let library = dlopen(file.as_ptr(), RTLD_NOW);
            if library.is_null() {
                return Err(failed(CStr::from_ptr(dlerror()).to_string_lossy().into_owned()));
            }
            macro_rules! function {
                ($name:literal) => {{
                    let symbol = dlsym(library, concat!($name, "\0").as_ptr().cast());
                    if symbol.is_null() {
                        return Err(failed(format!("{path} has no {}", $name)));
                    }
                    std::mem::transmute::<*mut c_void, _>(symbol)
                }};
            }
            let version: unsafe extern "C" fn() -> u32 = function!("dgo_abi_version");
            if version() != ABI_VERSION {
                return Err(failed(format!("{path} has ABI {}, expected {ABI_VERSION}", version())));
            }
            Ok(Library(Arc::new(Functions {
                buffer_free: function!("dgo_buffer_free"),
                router_new: function!("dgo_router_new"),
                router_close: function!("dgo_router_close"),
                router_add_worker: function!("dgo_router_add_worker"),
                router_best_worker: function!("dgo_router_best_worker"),
                router_free: function!("dgo_router_free"),
                mocker_new: function!("dgo_mocker_new"),
                mocker_info: function!("dgo_mocker_info"),
                mocker_generate: function!("dgo_mocker_generate"),
                mocker_close: function!("dgo_mocker_close"),
                stream_fd: function!("dgo_stream_fd"),
                stream_next: function!("dgo_stream_next"),
                stream_close: function!("dgo_stream_close"),
                router_generate: function!("dgo_router_generate"),
                publisher_publish: function!("dgo_publisher_publish"),
                publisher_close: function!("dgo_publisher_close"),
                runtime_new: function!("dgo_runtime_new"),
                runtime_info: function!("dgo_runtime_info"),
                runtime_close: function!("dgo_runtime_close"),
                runtime_serve: function!("dgo_runtime_serve"),
                runtime_model: function!("dgo_runtime_model"),
                runtime_answer: function!("dgo_runtime_answer"),
                runtime_client: function!("dgo_runtime_client"),
                runtime_call: function!("dgo_runtime_call"),
                runtime_more: function!("dgo_runtime_more"),
                runtime_cancel: function!("dgo_runtime_cancel"),
                runtime_router: function!("dgo_runtime_router"),
                runtime_publisher: function!("dgo_runtime_publisher"),
            })))
        }
    }

    fn call(&self, f: impl FnOnce(&Functions, *mut RawError) -> Status) -> Result<()> {
        let mut error = RawError::new();
        let status = f(&self.0, &mut error);
        error.check(status)
    }

    /// Gives what a call put into a buffer, and frees it.
    fn bytes(&self, f: impl FnOnce(&Functions, *mut RawBuffer, *mut RawError) -> Status) -> Result<Vec<u8>> {
        let mut buffer = RawBuffer { struct_size: size_of::<RawBuffer>() as u32, reserved: 0, data: ptr::null_mut(), size: 0 };
        let result = self.call(|g, e| f(g, &mut buffer, e));
        let mut bytes = Vec::new();
        // SAFETY: data has size bytes, or is NULL; the buffer is freed once and not used again.
        unsafe {
            if !buffer.data.is_null() {
                bytes.extend_from_slice(std::slice::from_raw_parts(buffer.data.cast::<u8>(), buffer.size));
            }
            (self.0.buffer_free)(&mut buffer);
        }
        result.map(|()| bytes)
    }
}

/// A handle that closes itself.
struct Handle {
    library: Library,
    value: u64,
    close: Close,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: any value may be closed, at any time.
        unsafe { (self.close)(self.value, ptr::null_mut()) };
    }
}

/// A router; see `dgo_router_new`.
pub struct Router(Handle);

impl Router {
    pub fn new(library: &Library, block_size: i64, config: Option<&str>) -> Result<Self> {
        let (mut value, config) = (0, RawString::of(config));
        // SAFETY (as in all calls below): pointers and lengths are of live memory, which the library keeps only during the call.
        library.call(|f, e| unsafe { (f.router_new)(block_size, config.data, config.size, ptr::null(), &mut value, e) })?;
        Ok(Router(Handle { library: library.clone(), value, close: library.0.router_close }))
    }

    pub fn add_worker(&self, id: u64, kv_events: Option<&str>, replay: Option<&str>) -> Result<()> {
        // SAFETY: all zero is every member's default.
        let mut worker: RawWorker = unsafe { std::mem::zeroed() };
        worker.struct_size = size_of::<RawWorker>() as u32;
        worker.worker_id = id;
        worker.kv_events = RawString::of(kv_events);
        worker.replay = RawString::of(replay);
        self.0.library.call(|f, e| unsafe { (f.router_add_worker)(self.0.value, &worker, e) })
    }

    /// Chooses a worker; with an id, the request is booked until it is freed.
    pub fn best_worker(&self, tokens: &[u32], request_id: Option<&str>) -> Result<Choice> {
        // SAFETY: all zero is every member's default.
        let mut request: RawRequest = unsafe { std::mem::zeroed() };
        request.struct_size = size_of::<RawRequest>() as u32;
        request.request_id = RawString::of(request_id);
        let mut choice =
            Choice { struct_size: size_of::<Choice>() as u32, dp_rank: 0, worker_id: 0, overlap_blocks: 0, reserved: 0 };
        self.0.library.call(|f, e| unsafe {
            (f.router_best_worker)(self.0.value, tokens.as_ptr(), tokens.len(), &request, &mut choice, e)
        })?;
        Ok(choice)
    }

    /// Sends a prompt where it is best, of a router of [`Runtime::router`]: the number of the call, of which the runtime's notices tell.
    /// `fields` is a MessagePack map that the worker gets besides the prompt.
    pub fn generate(&self, tokens: &[u32], request_id: Option<&str>, fields: Option<&[u8]>) -> Result<u64> {
        // SAFETY: all zero is every member's default.
        let mut request: RawRequest = unsafe { std::mem::zeroed() };
        request.struct_size = size_of::<RawRequest>() as u32;
        request.request_id = RawString::of(request_id);
        let (fields, mut call) = (RawString::bytes(fields), 0);
        self.0.library.call(|f, e| unsafe {
            (f.router_generate)(
                self.0.value, tokens.as_ptr(), tokens.len(), &request, fields.data, fields.size, ptr::null(), 0, &mut call, e,
            )
        })?;
        Ok(call)
    }

    pub fn free(&self, request_id: &str) -> Result<()> {
        let id = RawString::of(Some(request_id));
        self.0.library.call(|f, e| unsafe { (f.router_free)(self.0.value, id.data, id.size, e) })
    }
}

/// An engine without a GPU; see `dgo_mocker_new`.
pub struct Mocker(Handle);

impl Mocker {
    pub fn new(library: &Library, config: Option<&str>) -> Result<Self> {
        let (mut value, config) = (0, RawString::of(config));
        library.call(|f, e| unsafe { (f.mocker_new)(config.data, config.size, &mut value, e) })?;
        Ok(Mocker(Handle { library: library.clone(), value, close: library.0.mocker_close }))
    }

    /// Where it listens: a JSON object.
    pub fn info(&self) -> Result<String> {
        let json = self.0.library.bytes(|f, b, e| unsafe { (f.mocker_info)(self.0.value, b, e) })?;
        Ok(String::from_utf8_lossy(&json).into_owned())
    }

    pub fn generate(&self, tokens: &[u32], options: Option<&str>) -> Result<Stream> {
        let (mut value, options, library) = (0, RawString::of(options), &self.0.library);
        library.call(|f, e| unsafe {
            (f.mocker_generate)(self.0.value, tokens.as_ptr(), tokens.len(), options.data, options.size, &mut value, e)
        })?;
        Ok(Stream(Handle { library: library.clone(), value, close: library.0.stream_close }))
    }
}

/// Items that come piece by piece; see "Streams" in the header.
pub struct Stream(Handle);

impl Stream {
    /// A descriptor that is readable while there is something to take.
    pub fn fd(&self) -> Result<RawFd> {
        let mut fd = -1;
        self.0.library.call(|f, e| unsafe { (f.stream_fd)(self.0.value, &mut fd, e) })?;
        Ok(fd)
    }

    /// The items that wait, after waiting up to 100 ms for the first; `None` at the end.
    pub fn next_batch(&self) -> Result<Option<Vec<Vec<u8>>>> {
        let (mut ends, mut count) = ([0usize; 256], 0);
        let taken = self.0.library.bytes(|f, b, e| unsafe {
            (f.stream_next)(self.0.value, WAIT_MS_MAX, b, ends.as_mut_ptr(), ends.len(), &mut count, e)
        });
        match taken {
            Ok(bytes) => {
                let starts = std::iter::once(0).chain(ends.iter().copied());
                Ok(Some(starts.zip(&ends[..count]).map(|(start, &end)| bytes[start..end].to_vec()).collect()))
            }
            Err(e) if e.status == TIMEOUT => Ok(Some(Vec::new())),
            Err(e) if e.status == ENDED => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// The worker's side of KV events; see `dgo_publisher_publish`.
pub struct Publisher(Handle);

impl Publisher {
    pub fn publish(&self, dp_rank: u32, events: &[Event]) -> Result<()> {
        let raw: Vec<RawEvent> = events.iter().map(Event::raw).collect();
        self.0.library.call(|f, e| unsafe {
            (f.publisher_publish)(self.0.value, dp_rank, raw.as_ptr(), size_of::<RawEvent>(), raw.len(), e)
        })
    }
}

/// What a notice is of; see `DGO_NOTICE_*`. One that is not known is to be passed over.
pub mod notice {
    pub const REQUEST: u32 = 1;
    pub const CANCELLED: u32 = 2;
    pub const DRAINED: u32 = 3;
    pub const BEGUN: u32 = 4;
    pub const ITEM: u32 = 5;
    pub const ENDED: u32 = 6;
    pub const CHANGED: u32 = 7;
    pub const CLOSED: u32 = 8;
    /// A flag of `ITEM`: it is a remark, and no item.
    pub const NOTE: u32 = 4;
}

/// A notice of a runtime. The payload is MessagePack, of `ENDED` a text.
#[derive(Debug, Clone)]
pub struct Notice {
    pub id: u64,
    pub kind: u32,
    pub flags: u32,
    pub payload: Vec<u8>,
}

impl Notice {
    fn read(item: &[u8]) -> Self {
        let word = |at: usize| u32::from_ne_bytes(item[at..at + 4].try_into().unwrap());
        Notice {
            id: u64::from_ne_bytes(item[..8].try_into().unwrap()), kind: word(8), flags: word(12), payload: item[16..].to_vec(),
        }
    }
}

/// A process of a deployment; see "Runtime" in the header. Endpoints are `namespace.component.name`; services, clients and calls are
/// numbers; options, cards and configurations are JSON, requests and items MessagePack.
pub struct Runtime {
    handle: Handle,
    notices: Stream,
}

impl Runtime {
    pub fn new(library: &Library, config: Option<&str>) -> Result<Self> {
        let (mut value, mut notices, config) = (0, 0, RawString::of(config));
        library.call(|f, e| unsafe { (f.runtime_new)(config.data, config.size, &mut value, &mut notices, e) })?;
        let handle = Handle { library: library.clone(), value, close: library.0.runtime_close };
        let notices = Stream(Handle { library: library.clone(), value: notices, close: library.0.stream_close });
        Ok(Runtime { handle, notices })
    }

    /// The notices that wait, after waiting up to 100 ms for the first; `None` once the runtime is closed.
    pub fn notices(&self) -> Result<Option<Vec<Notice>>> {
        let items = self.notices.next_batch()?;
        Ok(items.map(|items| items.iter().map(|item| Notice::read(item)).collect()))
    }

    /// A descriptor that is readable while there are notices.
    pub fn fd(&self) -> Result<RawFd> {
        self.notices.fd()
    }

    /// The id of this process's instances.
    pub fn id(&self) -> Result<u64> {
        let json = self.handle.library.bytes(|f, b, e| unsafe { (f.runtime_info)(self.handle.value, b, e) })?;
        let text = String::from_utf8_lossy(&json);
        let digits = text.split_once("\"id\":").map_or("", |(_, rest)| rest);
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        digits[..end].parse().map_err(|_| Error { status: -1, message: format!("{text} has no id") })
    }

    /// Leaves the deployment; [`Runtime::notices`] ends.
    pub fn close(&self) {
        // SAFETY: any value may be closed, at any time, and again.
        unsafe { (self.handle.close)(self.handle.value, ptr::null_mut()) };
    }

    /// Says what an instance is like: a model card. `None` takes it back.
    pub fn model(&self, endpoint: &str, instance: u64, card: Option<&str>) -> Result<()> {
        let (endpoint, card) = (RawString::of(Some(endpoint)), RawString::of(card));
        self.call(|f, e| unsafe {
            (f.runtime_model)(self.handle.value, endpoint.data, endpoint.size, instance, card.data, card.size, e)
        })
    }

    /// Serves an endpoint: `REQUEST` tells of each call.
    pub fn serve(&self, endpoint: &str, options: Option<&str>) -> Result<u64> {
        self.make(self.handle.library.0.runtime_serve, endpoint, options)
    }

    /// Answers a call with an item; tells whether to wait for `DRAINED` before the next one. An error with `CANCELLED`: the caller is gone.
    pub fn answer(&self, call: u64, item: &[u8]) -> Result<bool> {
        self.send(call, Some(item), 0)
    }

    /// Ends an answer that is complete.
    pub fn end(&self, call: u64) -> Result<()> {
        self.send(call, None, 1).map(|_| ())
    }

    /// Ends an answer that is not.
    pub fn fail(&self, call: u64, message: &str) -> Result<()> {
        self.send(call, Some(message.as_bytes()), 2).map(|_| ())
    }

    fn send(&self, call: u64, item: Option<&[u8]>, flags: u32) -> Result<bool> {
        let (item, mut ahead) = (RawString::bytes(item), 0);
        self.call(|f, e| unsafe { (f.runtime_answer)(self.handle.value, call, item.data, item.size, flags, &mut ahead, e) })?;
        Ok(ahead != 0)
    }

    /// The worker's side of KV events.
    pub fn publisher(&self, endpoint: &str, config: &str) -> Result<Publisher> {
        let value = self.make(self.handle.library.0.runtime_publisher, endpoint, Some(config))?;
        Ok(Publisher(self.own(value, self.handle.library.0.publisher_close)))
    }

    /// Follows the instances of an endpoint, to call them.
    pub fn client(&self, endpoint: &str) -> Result<u64> {
        let (endpoint, mut client) = (RawString::of(Some(endpoint)), 0);
        self.call(|f, e| unsafe { (f.runtime_client)(self.handle.value, endpoint.data, endpoint.size, &mut client, e) })?;
        Ok(client)
    }

    /// Calls an instance: the number of the call.
    pub fn request(&self, client: u64, body: &[u8], options: Option<&str>) -> Result<u64> {
        let (body, options, mut call) = (RawString::bytes(Some(body)), RawString::of(options), 0);
        self.call(|f, e| unsafe {
            (f.runtime_call)(
                self.handle.value, client, body.data, body.size, options.data, options.size, &mut call, e,
            )
        })?;
        Ok(call)
    }

    /// A router whose workers are those that serve an endpoint and have a model card.
    pub fn router(&self, endpoint: &str, block_size: i64, config: Option<&str>) -> Result<Router> {
        let (endpoint, config, mut value) = (RawString::of(Some(endpoint)), RawString::of(config), 0);
        self.call(|f, e| unsafe {
            (f.runtime_router)(
                self.handle.value, endpoint.data, endpoint.size, block_size, config.data, config.size, &mut value, e,
            )
        })?;
        Ok(Router(self.own(value, self.handle.library.0.router_close)))
    }

    /// So many items of a call were taken; tells whether it goes on.
    pub fn more(&self, call: u64, n: usize) -> Result<bool> {
        unless_ended(self.call(|f, e| unsafe { (f.runtime_more)(self.handle.value, call, n, e) }))
    }

    /// No more of a call is wanted; with `kill` it ends at once. Tells whether it went on until now.
    pub fn cancel(&self, call: u64, kill: bool) -> Result<bool> {
        unless_ended(self.call(|f, e| unsafe { (f.runtime_cancel)(self.handle.value, call, kill as u32, e) }))
    }

    fn call(&self, f: impl FnOnce(&Functions, *mut RawError) -> Status) -> Result<()> {
        self.handle.library.call(f)
    }

    fn make(&self, function: Make, endpoint: &str, options: Option<&str>) -> Result<u64> {
        let (endpoint, options, mut value) = (RawString::of(Some(endpoint)), RawString::of(options), 0);
        self.call(|_, e| unsafe {
            function(self.handle.value, endpoint.data, endpoint.size, options.data, options.size, &mut value, e)
        })?;
        Ok(value)
    }

    fn own(&self, value: u64, close: Close) -> Handle {
        Handle { library: self.handle.library.clone(), value, close }
    }
}

fn unless_ended(result: Result<()>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(e) if e.status == REQUEST_NOT_FOUND => Ok(false),
        Err(e) => Err(e),
    }
}

//! A small safe interface to `libdynamo_go.so`: what `include/dynamo_go.h` declares, as far as `main.rs` needs it.
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
pub const TIMEOUT: Status = 12;
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
        text.map_or(Self::NONE, |t| RawString { data: t.as_ptr().cast(), size: t.len() })
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

// The sizes that the header documents.
const _: () = assert!(size_of::<RawError>() == 512 && size_of::<RawBuffer>() == 24 && size_of::<RawWorker>() == 160);
const _: () = assert!(size_of::<RawRequest>() == 200 && size_of::<Choice>() == 24);

type Close = unsafe extern "C" fn(u64, *mut RawError) -> Status;

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

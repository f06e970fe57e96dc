//! CPU time, and the samples a measurement gives.

/// CPU time of the calling thread, in nanoseconds.
pub fn cpu() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 * 1e9 + t.tv_nsec as f64
}

/// Gives freed memory back to the system, so that what grows next pays for its pages.
pub fn trim() {
    unsafe { libc::malloc_trim(0) };
}

/// Resident memory of this process in bytes, after the allocator gave back what it can.
pub fn resident() -> f64 {
    trim();
    let text = std::fs::read_to_string("/proc/self/statm").expect("/proc/self/statm");
    let pages: f64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096.0
}

/// Means of batches of calls, in nanoseconds a call, for about 100 ms of CPU time. `call` gets numbers that count up.
pub fn batches(size: usize, mut call: impl FnMut(usize)) -> Vec<f64> {
    let (mut samples, mut spent, mut n) = (vec![], 0.0, 0);
    while spent < 100e6 || samples.len() < 3 {
        let start = cpu();
        for _ in 0..size {
            call(n);
            n += 1;
        }
        let took = cpu() - start;
        spent += took;
        samples.push(took / size as f64);
    }
    samples
}

/// The 99th percentile.
pub fn p99(mut samples: Vec<u64>) -> f64 {
    samples.sort_unstable();
    samples[samples.len() * 99 / 100] as f64
}

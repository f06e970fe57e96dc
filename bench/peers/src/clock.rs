//! CPU time, and the samples a measurement gives.

fn clock(id: libc::clockid_t) -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    unsafe { libc::clock_gettime(id, &mut t) };
    t.tv_sec as f64 * 1e9 + t.tv_nsec as f64
}

/// CPU time of the calling thread, in nanoseconds.
pub fn cpu() -> f64 {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU times of short stretches of work, per unit of it.
#[derive(Default)]
pub struct Samples {
    all: Vec<f64>,
    calm: Vec<f64>,
    spent: f64,
}

impl Samples {
    /// Runs a stretch of `n` units. It was calm if the thread had a processor all the time; see `bench/clock.go`.
    pub fn take(&mut self, n: usize, work: impl FnOnce()) {
        const ALL: f64 = 0.95;
        let (wall, start) = (clock(libc::CLOCK_MONOTONIC), cpu());
        work();
        let took = cpu() - start;
        let wall = clock(libc::CLOCK_MONOTONIC) - wall;
        self.spent += took;
        self.all.push(took / n as f64);
        if took >= ALL * wall {
            self.calm.push(took / n as f64);
        }
    }

    /// The calm samples, or all if none is.
    pub fn best(self) -> Vec<f64> {
        if self.calm.is_empty() { self.all } else { self.calm }
    }
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
    let (mut samples, mut n) = (Samples::default(), 0);
    while samples.spent < 100e6 || samples.all.len() < 3 {
        samples.take(size, || {
            for _ in 0..size {
                call(n);
                n += 1;
            }
        });
    }
    samples.best()
}

/// The 99th percentile.
pub fn p99(mut samples: Vec<u64>) -> f64 {
    samples.sort_unstable();
    samples[samples.len() * 99 / 100] as f64
}

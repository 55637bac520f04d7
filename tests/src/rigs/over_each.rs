//! One function, a test over each driver that needs no device.

/// Each of these functions, which take a `Driver` that their file knows, as a test over shared memory and one over TCP.
#[macro_export]
macro_rules! over_each {
    ($($test:ident),* $(,)?) => {
        mod over_shm {
            $(#[test] fn $test() { super::$test(super::Driver::Shm) })*
        }
        mod over_tcp {
            $(#[test] fn $test() { super::$test(super::Driver::Tcp) })*
        }
    };
}

//! One function, a test over each of several drivers.

/// Each of these functions, which take a `Driver` that their file knows, as a test over shared memory and one over TCP.
#[macro_export]
macro_rules! over_each {
    ($($test:ident),* $(,)?) => {
        $crate::over!(over_shm, Shm: $($test),*);
        $crate::over!(over_tcp, Tcp: $($test),*);
    };
}

/// Each of these functions as a test over one driver, in a module of its own. An attribute in front is that of
/// each test.
#[macro_export]
macro_rules! over {
    ($module:ident, $driver:ident: $($test:ident),* $(,)?) => {
        $crate::over!(#[cfg(all())] $module, $driver: $($test),*);
    };
    (#[$attribute:meta] $module:ident, $driver:ident: $($test:ident),* $(,)?) => {
        mod $module {
            $(#[test] #[$attribute] fn $test() { super::$test(super::Driver::$driver) })*
        }
    };
}

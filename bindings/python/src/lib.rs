//! `gradwire._native`: the client library as a Python module. What is pleasant to type (settings, rules, names, errors,
//! asyncio) is Python's, in `python/gradwire`; here is what moves bytes, waits, or keeps memory alive.
//!
//! Nothing here holds the interpreter's lock while it waits or copies much. Memory is only ever named by who owns it:
//! see `memory` for the library's, `adopted` for arrays of the caller's.

mod adopted;
mod array;
mod client;
mod dlpack;
mod ends;
mod error;
mod finisher;
mod handle;
mod here;
mod interrupt;
mod memory;
mod mxnet;
mod pending;
mod rows;
mod serving;
mod settings;
mod tensor;
mod tensorflow;

use pyo3::prelude::*;

/// The native half of `gradwire`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::client::Client;
    #[pymodule_export]
    use crate::handle::Handle;
    #[pymodule_export]
    use crate::memory::Memory;
    #[pymodule_export]
    use crate::mxnet::{MxEngine, MxKey};
    #[pymodule_export]
    use crate::pending::Pending;
    #[pymodule_export]
    use crate::rows::Table;
    #[pymodule_export]
    use crate::serving::serve;
    #[pymodule_export]
    use crate::settings::{elements, enable_logging, settings_reference, transports};
    #[pymodule_export]
    use crate::tensor::{Tensor, key_of_name};
    #[pymodule_export]
    use crate::tensorflow::{TfExchange, tensorflow_forget, tensorflow_functions, tensorflow_register};

    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

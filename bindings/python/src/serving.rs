//! A server with a handler in Python: the command `gradwire-server` in this process. It must not know what the handler does.

use crate::array::Array;
use crate::error::{Failure, Kind};
use gradwire_server::{
    App, Apps, Block, Call, OwnKind, OwnRule, OwnStep, Program, ReplyBody, Rules, ServerCommand,
};
use proto_common::message::{Coming, Welcome};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use std::ffi::OsString;
use std::sync::Arc;

/// A rule that changes nothing, by which workers and the scheduler see that a server has the handler.
struct Mark(String);

impl OwnRule for Mark {
    fn kind(&self) -> OwnKind {
        OwnKind::new(&self.0)
    }

    fn update(&self, _: &OwnStep<'_>, _: Block<'_, f32>) {}
}

/// A Python object with the methods `joined(rank, servers, is_recovery)`, `call(from, head, body, is_repeated)`, which returns head and
/// body of the reply, `save()` and `load(state)`.
#[derive(Clone)]
struct Handler(Arc<Py<PyAny>>);

impl Handler {
    fn join(&self, welcome: &Welcome) {
        let Welcome { rank, shape, coming, .. } = welcome;
        let words = (rank.0, shape.servers, *coming == Coming::Again);
        // It only stores them. An exception has been printed.
        let _ = self.ask(|handler| handler.call_method1("joined", words).map(drop));
    }

    /// Calls a method; an exception is printed.
    fn ask<R>(&self, ask: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<R>) -> Result<R, String> {
        let asked = Python::try_attach(|py| {
            ask(self.0.bind(py)).map_err(|error| {
                error.print(py);
                error.to_string()
            })
        });
        asked.unwrap_or_else(|| Err("the interpreter has ended".to_owned()))
    }
}

impl App for Handler {
    /// After an exception the worker gets an error without a reason: handlers catch what they can explain.
    fn call(&mut self, call: Call) {
        let answer = self.ask(|handler| {
            let py = handler.py();
            let words = (
                call.from.0,
                PyBytes::new(py, &call.head),
                PyBytes::new(py, &call.body),
                call.reply.is_again(),
            );
            let (head, body) =
                handler.call_method1("call", words)?.extract::<(PyBackedBytes, Bound<'_, PyAny>)>()?;
            let body = Array::of(&body)?;
            // It goes from here to the worker without another copy.
            let bytes = body.bytes();
            if bytes == 0 {
                return Ok((head, Vec::new().into()));
            }
            let mut reply = call.reply.allocate(bytes as u64).map_err(|error| {
                Failure::new(Kind::Memory, "memory", format!("there is no memory for a reply: {error}"))
            })?;
            // SAFETY: the array keeps so many bytes at the address, and is held; its owner waits for this reply, and does not write it.
            // Needed because Python's arrays are no Rust types.
            reply.copy_from_slice(unsafe { std::slice::from_raw_parts(body.address as *const u8, bytes) });
            Ok((head, ReplyBody::from(reply)))
        });
        let Ok((head, body)) = answer else { return };
        if let Err(error) = call.reply.send(&head, body) {
            tracing::warn!(%error, worker = call.from.0, "a reply of the program's handler was lost");
        }
    }

    fn has_state(&self) -> bool {
        true
    }

    fn save(&mut self) -> Option<Vec<u8>> {
        self.ask(|handler| handler.call_method0("save")?.extract()).ok()
    }

    fn load(&mut self, state: &[u8]) -> Result<(), String> {
        self.ask(|handler| handler.call_method1("load", (PyBytes::new(handler.py(), state),)).map(drop))
    }
}

/// Runs `gradwire-server` with these words, the first of which is a name, until its job ends. Calls to `app` go to the handler; the
/// servers say that they have it by an update rule named `mark`. Returns the exit code.
#[pyfunction]
pub(crate) fn serve(
    py: Python<'_>,
    words: Vec<OsString>,
    mark: String,
    app: u32,
    handler: Py<PyAny>,
) -> PyResult<u8> {
    let mut program = Program { apps: Apps::default(), rules: Rules::default() };
    let refused = |error: &dyn std::fmt::Display| Failure::input("handler", error.to_string());
    program.rules.register(Mark(mark)).map_err(|error| refused(&error))?;
    let handler = Handler(Arc::new(handler));
    program.apps.register(app, handler.clone()).map_err(|error| refused(&error))?;
    let run = |command: ServerCommand| command.run(program, move |welcome| handler.join(welcome));
    Ok(py.detach(|| ServerCommand::parse(words).map_or(1, run)))
}

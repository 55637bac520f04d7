//! Converts what C passes into what Rust may use. All unsafe code of this crate that reads its callers' memory is
//! here, or has a comment that says why not. It knows no type of the library.
//!
//! References, boxes and options of them in signatures are plain pointers in C. The caller must ensure that they point
//! to live objects, as the header states for each type.

use crate::error::Failure;
pub(crate) use fabric::lock;
use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;

/// Where a result goes. C need not have written there before.
pub(crate) type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Writes a result to where C wants it.
pub(crate) fn put<T>(out: Out<'_, T>, name: &str, value: T) -> Result<(), Failure> {
    let place = out.ok_or_else(|| Failure::null(name))?;
    place.write(value);
    Ok(())
}

/// As [`put`], where C may not want the result.
pub(crate) fn put_if_wanted<T>(out: Out<'_, T>, value: T) {
    if let Some(place) = out {
        place.write(value);
    }
}

/// Makes an object for C, which frees it. Where it goes is known before anything is started.
pub(crate) fn make<T>(
    out: Out<'_, Option<Box<T>>>,
    name: &str,
    new: impl FnOnce() -> Result<T, Failure>,
) -> Result<(), Failure> {
    let place = out.ok_or_else(|| Failure::null(name))?;
    place.write(Some(Box::new(new()?)));
    Ok(())
}

/// An object that C passed.
pub(crate) fn object<'a, T>(object: Option<&'a T>, name: &str) -> Result<&'a T, Failure> {
    object.ok_or_else(|| Failure::null(name))
}

/// Text that ends with a nul.
pub(crate) fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::null(name));
    }
    // SAFETY: not null, and by the header's contract a string that ends with a nul and stays as it is during the call,
    // beyond which nobody keeps what this returns. Needed because C has no other strings.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::argument(format!("{name} is not UTF-8")))
}

/// Memory to be read during the call; null is fine where there is none.
pub(crate) fn bytes<'a>(start: *const u8, bytes: u64, name: &str) -> Result<&'a [u8], Failure> {
    slice(start, bytes, name)
}

/// As [`bytes`], of numbers or structures, whose alignment is checked.
pub(crate) fn slice<'a, T>(start: *const T, count: u64, name: &str) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    let count = length::<T>(count, name)?;
    check(start, name)?;
    // SAFETY: not null, aligned, no longer than half the address space, and by the header's contract so many readable
    // elements that nobody writes during the call, beyond which nobody keeps what this returns. Needed because C passes
    // arrays so.
    Ok(unsafe { std::slice::from_raw_parts(start, count) })
}

/// Memory to be written during the call.
pub(crate) fn slice_mut<'a, T>(start: *mut T, count: u64, name: &str) -> Result<&'a mut [T], Failure> {
    if count == 0 {
        return Ok(&mut []);
    }
    let count = length::<T>(count, name)?;
    check(start, name)?;
    // SAFETY: as in `slice`, with memory that the caller lets the library alone write until the call or wait that lands
    // in it returns. `T` is a plain number or pointer, for which all bytes are valid.
    Ok(unsafe { std::slice::from_raw_parts_mut(start, count) })
}

fn check<T>(start: *const T, name: &str) -> Result<(), Failure> {
    if start.is_null() {
        return Err(Failure::null(name));
    }
    match start.is_aligned() {
        true => Ok(()),
        false => Err(Failure::argument(format!(
            "{name} is not aligned: its address must be a multiple of {} bytes",
            align_of::<T>()
        ))),
    }
}

fn length<T>(count: u64, name: &str) -> Result<usize, Failure> {
    let bytes = count.checked_mul(size_of::<T>() as u64);
    bytes.filter(|bytes| *bytes <= isize::MAX as u64).map(|_| count as usize).ok_or_else(|| {
        Failure::argument(format!(
            "{name} cannot have {count} elements: that is more than the address space holds"
        ))
    })
}

/// Writes a length and returns where that many bytes begin.
pub(crate) fn shown(data: &[u8], bytes: Option<&mut MaybeUninit<u64>>) -> *const c_void {
    put_if_wanted(bytes, data.len() as u64);
    data.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::GradwireCode;

    #[test]
    fn what_cannot_be_memory_is_refused() {
        let numbers = [1u32, 2];
        assert_eq!(slice(numbers.as_ptr(), 2, "numbers").expect("fine"), &numbers);
        assert_eq!(slice(std::ptr::null::<u32>(), 0, "numbers").expect("none is fine"), &[] as &[u32]);
        let null = slice(std::ptr::null::<u32>(), 1, "numbers").expect_err("null");
        assert_eq!(null.code, GradwireCode::NullArgument);
        let odd = slice(numbers.as_ptr().wrapping_byte_add(1), 1, "numbers").expect_err("odd");
        assert!(odd.text.contains("multiple of 4 bytes"), "{}", odd.text);
        let long = slice(numbers.as_ptr(), u64::MAX / 2, "numbers").expect_err("long");
        assert_eq!(long.code, GradwireCode::BadArgument);
    }

    #[test]
    fn text_is_utf8_or_refused() {
        assert_eq!(text(c"key".as_ptr(), "key").expect("fine"), "key");
        assert!(text(c"\xFF".as_ptr(), "key").expect_err("no UTF-8").text.contains("UTF-8"));
        assert_eq!(text(std::ptr::null(), "key").expect_err("null").code, GradwireCode::NullArgument);
    }
}

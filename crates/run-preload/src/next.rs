//! The functions that the program would call without this library.

use std::ffi::{CStr, c_void};
use std::mem::transmute_copy;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the C library, or of another library loaded before it.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            found: AtomicPtr::new(null_mut()),
        }
    }

    fn find(&self) {
        // SAFETY: the name ends with a NUL.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Release);
    }

    /// The function, if there is one.
    ///
    /// # Safety
    /// `F` is the type of a C function with the signature of the one with this name.
    pub(crate) unsafe fn get<F: Copy>(&self) -> Option<F> {
        const {
            assert!(size_of::<F>() == size_of::<*mut c_void>(), "a pointer");
        }
        if self.found.load(Ordering::Acquire).is_null() {
            // A call before the library was set up.
            self.find();
        }
        let found = self.found.load(Ordering::Acquire);
        // SAFETY: the caller names the type of the function, and the pointer is not null.
        (!found.is_null()).then(|| unsafe { transmute_copy::<*mut c_void, F>(&found) })
    }
}

macro_rules! functions {
    ($($name:ident = $text:literal),* $(,)?) => {
        $(pub(crate) static $name: Next = Next::new($text);)*

        /// Finds all of them.
        pub(crate) fn find_all() {
            $($name.find();)*
        }
    };
}

functions! {
    FSYNC = c"fsync",
    FDATASYNC = c"fdatasync",
    SYNCFS = c"syncfs",
    MSYNC = c"msync",
    SYNC_FILE_RANGE = c"sync_file_range",
    PWRITEV2 = c"pwritev2",
    PWRITEV64V2 = c"pwritev64v2",
}

//! Observations as bytes: short, because there are many, and quick to make, because programs
//! wait meanwhile.
//!
//! An observation is a byte that says what it is, the moment it began (8 bytes, little end
//! first), and numbers of 7 bits a byte, low ones first, the last one without the high bit;
//! names have their length in front.

use mobifs_base::codec::{Reader, Sink as _};
use mobifs_base::{
    AttributeGroup, DeviceState, FoundObject, MonotonicNs, ObjectId, ObservedOperation, Operation,
    UserOperation,
};

use crate::Observation;

/// What an observation is.
mod code {
    pub(super) const LOOKUP: u8 = 1;
    pub(super) const LISTED: u8 = 2;
    pub(super) const LOOK: u8 = 3;
    pub(super) const MAKE_FILE: u8 = 4;
    pub(super) const MAKE_SPECIAL: u8 = 5;
    pub(super) const MAKE_DIRECTORY: u8 = 6;
    pub(super) const MAKE_SYMLINK: u8 = 7;
    pub(super) const MAKE_UNNAMED: u8 = 8;
    pub(super) const LINK: u8 = 9;
    pub(super) const UNLINK: u8 = 10;
    pub(super) const REMOVE_DIRECTORY: u8 = 11;
    pub(super) const RENAME: u8 = 12;
    pub(super) const READ: u8 = 13;
    pub(super) const WRITE: u8 = 14;
    pub(super) const COPY: u8 = 15;
    pub(super) const TRUNCATE: u8 = 16;
    pub(super) const ALLOCATE: u8 = 17;
    pub(super) const SET_ATTRIBUTES: u8 = 18;
    pub(super) const SET_XATTR: u8 = 19;
    pub(super) const REMOVE_XATTR: u8 = 20;
    pub(super) const READ_DIRECTORY: u8 = 21;
    pub(super) const SYNC: u8 = 22;
    pub(super) const SYNC_ALL: u8 = 23;
    pub(super) const RELEASE: u8 = 24;
    pub(super) const FORGET: u8 = 25;
    pub(super) const USER: u8 = 26;
    pub(super) const DEVICE: u8 = 27;
}

const GROUPS: [AttributeGroup; 3] = [
    AttributeGroup::Mode,
    AttributeGroup::Owner,
    AttributeGroup::Times,
];

/// Appends an observation to `output`.
pub(super) fn encode(observation: &Observation<'_>, output: &mut Vec<u8>) {
    match *observation {
        Observation::Operation { process, observed } => {
            encode_operation(process, &observed, output)
        }
        Observation::User { at, operation } => {
            begin(code::USER, at, output);
            output.varint(place(UserOperation::ALL, &operation));
        }
        Observation::Device { at, state } => {
            begin(code::DEVICE, at, output);
            output.varint(place(DeviceState::ALL, &state));
        }
    }
}

fn place<T: PartialEq>(all: &[T], wanted: &T) -> u64 {
    // Each is in the list of all.
    all.iter().position(|one| one == wanted).unwrap_or(0) as u64
}

fn begin(code: u8, at: MonotonicNs, output: &mut Vec<u8>) {
    output.push(code);
    output.extend_from_slice(&at.0.to_le_bytes());
}

/// An object and whether it is a directory; 0 stands for none.
fn found(found: Option<FoundObject>, output: &mut Vec<u8>) {
    output.varint(found.map_or(0, |found| found.id.0));
    output.push(found.is_some_and(|found| found.is_directory).into());
}

fn encode_operation(process: u32, observed: &ObservedOperation<'_>, output: &mut Vec<u8>) {
    begin(code_of(&observed.operation), observed.begun_at, output);
    output.varint(observed.duration_ns);
    output.varint(process.into());
    output.varint(observed.thread.into());
    output.varint(observed.object.0);
    output.varint(observed.error.into());
    match observed.operation {
        Operation::Look
        | Operation::RemoveXattr
        | Operation::ReadDirectory
        | Operation::SyncAll
        | Operation::Release => {}
        Operation::Read {
            offset,
            length,
            moved,
        } => numbers(&[offset, length, moved], output),
        Operation::Write {
            offset,
            length,
            moved,
        } => numbers(&[offset, length, moved], output),
        Operation::Copy {
            offset,
            target,
            target_offset,
            length,
            moved,
        } => numbers(&[offset, target.0, target_offset, length, moved], output),
        Operation::Truncate { size_bytes } => output.varint(size_bytes),
        Operation::Allocate {
            mode,
            offset,
            length,
        } => numbers(&[mode.into(), offset, length], output),
        Operation::SetAttributes { group } => output.varint(place(&GROUPS, &group)),
        Operation::SetXattr { length } => output.varint(length),
        Operation::Sync { is_data_only } => output.varint(is_data_only.into()),
        Operation::Forget { lookups } => output.varint(lookups),
        _ => encode_names(&observed.operation, output),
    }
}

fn numbers(values: &[u64], output: &mut Vec<u8>) {
    for &value in values {
        output.varint(value);
    }
}

fn encode_names(operation: &Operation<'_>, output: &mut Vec<u8>) {
    match *operation {
        Operation::Lookup {
            name: of,
            found: what,
        } => {
            output.varint_bytes(of);
            found(what, output);
        }
        Operation::Listed {
            name: of,
            found: what,
        } => {
            output.varint_bytes(of);
            found(Some(what), output);
        }
        Operation::MakeSpecial { name: of, made } => {
            output.varint_bytes(of);
            found(made, output);
        }
        Operation::MakeFile {
            name: of,
            mode,
            made,
        }
        | Operation::MakeDirectory {
            name: of,
            mode,
            made,
        } => {
            output.varint_bytes(of);
            output.varint(mode.into());
            found(made, output);
        }
        Operation::MakeSymlink {
            name: of,
            target,
            made,
        } => {
            output.varint_bytes(of);
            output.varint_bytes(target);
            found(made, output);
        }
        Operation::MakeUnnamed { mode, flags, made } => {
            numbers(&[mode.into(), flags.into()], output);
            found(made, output);
        }
        Operation::Link { of, name: to } => {
            output.varint(of.0);
            output.varint_bytes(to);
        }
        Operation::Rename {
            name: of,
            new_directory,
            new_name,
            is_exchange,
        } => {
            output.varint_bytes(of);
            numbers(&[new_directory.0, is_exchange.into()], output);
            output.varint_bytes(new_name);
        }
        Operation::Unlink { name: of } | Operation::RemoveDirectory { name: of } => {
            output.varint_bytes(of);
        }
        _ => {}
    }
}

const fn code_of(operation: &Operation<'_>) -> u8 {
    match operation {
        Operation::Lookup { .. } => code::LOOKUP,
        Operation::Listed { .. } => code::LISTED,
        Operation::Look => code::LOOK,
        Operation::MakeFile { .. } => code::MAKE_FILE,
        Operation::MakeSpecial { .. } => code::MAKE_SPECIAL,
        Operation::MakeDirectory { .. } => code::MAKE_DIRECTORY,
        Operation::MakeSymlink { .. } => code::MAKE_SYMLINK,
        Operation::MakeUnnamed { .. } => code::MAKE_UNNAMED,
        Operation::Link { .. } => code::LINK,
        Operation::Unlink { .. } => code::UNLINK,
        Operation::RemoveDirectory { .. } => code::REMOVE_DIRECTORY,
        Operation::Rename { .. } => code::RENAME,
        Operation::Read { .. } => code::READ,
        Operation::Write { .. } => code::WRITE,
        Operation::Copy { .. } => code::COPY,
        Operation::Truncate { .. } => code::TRUNCATE,
        Operation::Allocate { .. } => code::ALLOCATE,
        Operation::SetAttributes { .. } => code::SET_ATTRIBUTES,
        Operation::SetXattr { .. } => code::SET_XATTR,
        Operation::RemoveXattr => code::REMOVE_XATTR,
        Operation::ReadDirectory => code::READ_DIRECTORY,
        Operation::Sync { .. } => code::SYNC,
        Operation::SyncAll => code::SYNC_ALL,
        Operation::Release => code::RELEASE,
        Operation::Forget { .. } => code::FORGET,
    }
}

/// Walks over observations.
pub struct Decoder<'a>(Reader<'a>);

impl<'a> Decoder<'a> {
    /// Decodes the payload of a frame of observations, or its end from where an observation begins.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(Reader::new(bytes))
    }

    /// Bytes that no observation was read from.
    pub const fn rest(&self) -> &'a [u8] {
        self.0.rest()
    }

    fn number(&mut self) -> Option<u64> {
        self.0.varint().ok()
    }

    fn small(&mut self) -> Option<u32> {
        self.0.varint_as().ok()
    }

    fn flag(&mut self) -> Option<bool> {
        match self.number()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn name(&mut self) -> Option<&'a [u8]> {
        self.0.varint_bytes().ok()
    }

    fn found(&mut self) -> Option<Option<FoundObject>> {
        let id = ObjectId(self.number()?);
        let is_directory = self.flag()?;
        Some((id.0 != 0).then_some(FoundObject { id, is_directory }))
    }

    /// The next observation; none if the bytes are not one.
    pub fn observation(&mut self) -> Option<Observation<'a>> {
        let code = self.0.u8().ok()?;
        let at = MonotonicNs(self.0.u64().ok()?);
        match code {
            code::USER => {
                let place = usize::try_from(self.number()?).ok()?;
                let operation = *UserOperation::ALL.get(place)?;
                return Some(Observation::User { at, operation });
            }
            code::DEVICE => {
                let place = usize::try_from(self.number()?).ok()?;
                let state = *DeviceState::ALL.get(place)?;
                return Some(Observation::Device { at, state });
            }
            _ => {}
        }
        let duration_ns = self.number()?;
        let process = self.small()?;
        let thread = self.small()?;
        let object = ObjectId(self.number()?);
        let error = self.small()?;
        let operation = match self.on_content(code)? {
            Some(operation) => operation,
            None => self.on_names(code)?,
        };
        let observed = ObservedOperation {
            begun_at: at,
            duration_ns,
            thread,
            object,
            operation,
            error,
        };
        Some(Observation::Operation { process, observed })
    }

    /// None inside: it is another kind of operation.
    fn on_content(&mut self, code: u8) -> Option<Option<Operation<'a>>> {
        Some(Some(match code {
            code::LOOK => Operation::Look,
            code::READ => Operation::Read {
                offset: self.number()?,
                length: self.number()?,
                moved: self.number()?,
            },
            code::WRITE => Operation::Write {
                offset: self.number()?,
                length: self.number()?,
                moved: self.number()?,
            },
            code::COPY => Operation::Copy {
                offset: self.number()?,
                target: ObjectId(self.number()?),
                target_offset: self.number()?,
                length: self.number()?,
                moved: self.number()?,
            },
            code::TRUNCATE => Operation::Truncate {
                size_bytes: self.number()?,
            },
            code::ALLOCATE => Operation::Allocate {
                mode: self.small()?,
                offset: self.number()?,
                length: self.number()?,
            },
            code::SET_ATTRIBUTES => Operation::SetAttributes {
                group: *GROUPS.get(usize::try_from(self.number()?).ok()?)?,
            },
            code::SET_XATTR => Operation::SetXattr {
                length: self.number()?,
            },
            code::REMOVE_XATTR => Operation::RemoveXattr,
            code::READ_DIRECTORY => Operation::ReadDirectory,
            code::SYNC => Operation::Sync {
                is_data_only: self.flag()?,
            },
            code::SYNC_ALL => Operation::SyncAll,
            code::RELEASE => Operation::Release,
            code::FORGET => Operation::Forget {
                lookups: self.number()?,
            },
            _ => return Some(None),
        }))
    }

    fn on_names(&mut self, code: u8) -> Option<Operation<'a>> {
        Some(match code {
            code::LOOKUP => Operation::Lookup {
                name: self.name()?,
                found: self.found()?,
            },
            code::LISTED => Operation::Listed {
                name: self.name()?,
                found: self.found()??,
            },
            code::MAKE_FILE => Operation::MakeFile {
                name: self.name()?,
                mode: self.small()?,
                made: self.found()?,
            },
            code::MAKE_SPECIAL => Operation::MakeSpecial {
                name: self.name()?,
                made: self.found()?,
            },
            code::MAKE_DIRECTORY => Operation::MakeDirectory {
                name: self.name()?,
                mode: self.small()?,
                made: self.found()?,
            },
            code::MAKE_SYMLINK => Operation::MakeSymlink {
                name: self.name()?,
                target: self.name()?,
                made: self.found()?,
            },
            code::MAKE_UNNAMED => Operation::MakeUnnamed {
                mode: self.small()?,
                flags: self.small()?,
                made: self.found()?,
            },
            code::LINK => Operation::Link {
                of: ObjectId(self.number()?),
                name: self.name()?,
            },
            code::UNLINK => Operation::Unlink { name: self.name()? },
            code::REMOVE_DIRECTORY => Operation::RemoveDirectory { name: self.name()? },
            code::RENAME => {
                let name = self.name()?;
                let new_directory = ObjectId(self.number()?);
                let is_exchange = self.flag()?;
                Operation::Rename {
                    name,
                    new_directory,
                    new_name: self.name()?,
                    is_exchange,
                }
            }
            _ => return None,
        })
    }
}

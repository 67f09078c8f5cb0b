use mobifs_base::{
    DeviceState, FoundObject, MonotonicNs, ObjectId, ObservedOperation, Operation, UserOperation,
};
use proptest::prelude::*;

use crate::codec::encode;
use crate::{Decoder, Observation};

fn file(id: u64) -> FoundObject {
    FoundObject {
        id: ObjectId(id),
        is_directory: false,
    }
}

fn names() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..9)
}

fn found() -> impl Strategy<Value = Option<FoundObject>> {
    let object = (1_u64.., any::<bool>());
    let object = object.prop_map(|(id, is_directory)| FoundObject {
        id: ObjectId(id),
        is_directory,
    });
    proptest::option::of(object)
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(
        (name, other) in (names(), names()),
        found in found(),
        numbers in any::<[u64; 4]>(),
        (small, flag) in (any::<u32>(), any::<bool>()),
    ) {
        let [a, b, c, d] = numbers;
        let object = ObjectId(a);
        let all = [
            Operation::Lookup { name: &name, found },
            Operation::Listed { name: &name, found: file(a.max(1)) },
            Operation::Look,
            Operation::MakeFile { name: &name, mode: small, made: found },
            Operation::MakeSpecial { name: &name, made: found },
            Operation::MakeDirectory { name: &name, mode: small, made: found },
            Operation::MakeSymlink { name: &name, target: &other, made: found },
            Operation::MakeUnnamed { mode: small, flags: small, made: found },
            Operation::Link { of: object, name: &name },
            Operation::Unlink { name: &name },
            Operation::RemoveDirectory { name: &name },
            Operation::Rename {
                name: &name,
                new_directory: object,
                new_name: &other,
                is_exchange: flag,
            },
            Operation::Read { offset: a, length: b, moved: c },
            Operation::Write { offset: a, length: b, moved: c },
            Operation::Copy { offset: b, target: object, target_offset: c, length: d, moved: a },
            Operation::Truncate { size_bytes: a },
            Operation::Allocate { mode: small, offset: a, length: b },
            Operation::SetAttributes { group: mobifs_base::AttributeGroup::Times },
            Operation::SetXattr { length: a },
            Operation::RemoveXattr,
            Operation::ReadDirectory,
            Operation::Sync { is_data_only: flag },
            Operation::SyncAll,
            Operation::Release,
            Operation::Forget { lookups: a },
        ];
        let mut bytes = Vec::new();
        let mut observations: Vec<Observation<'_>> = all
            .map(|operation| Observation::Operation {
                process: small,
                observed: ObservedOperation {
                    begun_at: MonotonicNs(d),
                    duration_ns: c,
                    thread: small,
                    object,
                    operation,
                    error: small,
                },
            })
            .into();
        let at = MonotonicNs(a);
        observations.push(Observation::User { at, operation: UserOperation::Key });
        observations.push(Observation::Device { at, state: DeviceState::BatteryOk });
        observations.iter().for_each(|one| encode(one, &mut bytes));
        let mut decoder = Decoder::new(&bytes);
        for one in &observations {
            prop_assert_eq!(decoder.observation(), Some(*one));
        }
        prop_assert!(decoder.rest().is_empty());
    }
}

/// Logs of earlier builds must stay readable: this changes only with the version in
/// [`crate::MAGIC`].
#[test]
fn observations_keep_their_bytes() {
    let observed = |operation| Observation::Operation {
        process: 70_000,
        observed: ObservedOperation {
            begun_at: MonotonicNs(0x0102_0304_0506_0708),
            duration_ns: 1 << 35,
            thread: 127,
            object: ObjectId(128),
            operation,
            error: 2,
        },
    };
    let all = [
        observed(Operation::Lookup {
            name: b"name",
            found: Some(file(u64::MAX)),
        }),
        observed(Operation::Rename {
            name: b"old",
            new_directory: ObjectId(1),
            new_name: b"new",
            is_exchange: true,
        }),
        observed(Operation::Write {
            offset: 4096,
            length: 4096,
            moved: 0,
        }),
        Observation::User {
            at: MonotonicNs(1),
            operation: UserOperation::Key,
        },
        Observation::Device {
            at: MonotonicNs(2),
            state: DeviceState::BatteryOk,
        },
    ];
    let mut bytes = Vec::new();
    all.iter().for_each(|one| encode(one, &mut bytes));
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let golden = "010807060504030201808080808001f0a2047f800102046e616d65ffffffffffffffffff01000c08\
        07060504030201808080808001f0a2047f800102036f6c640101036e65770e080706050403020180\
        8080808001f0a2047f80010280208020001a0100000000000000011b020000000000000005";
    assert_eq!(hex, golden);
}

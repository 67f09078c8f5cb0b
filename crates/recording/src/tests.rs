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

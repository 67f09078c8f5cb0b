//! The way of content through every preset.

use mobifs_flash::{Device, Keep, MemoryMedium, Model, Preset, Sector, VirtualNs, WriteKind};

#[test]
fn presets_carry_content() {
    for preset in Preset::ALL {
        let config = preset.config().unwrap();
        let model = Model::new(&config, 64 << 20, 1).unwrap();
        let mut device = Device::new(model, MemoryMedium::new());
        let mut at = VirtualNs::ZERO;
        for round in 0..20_u64 {
            for step in 0..200_u64 {
                let start = Sector((step * 7919 + round * 13) % 16000 * 8);
                let content = [(step + round) as u8; 8192];
                at = device
                    .write(at, start, &content, WriteKind::Plain)
                    .unwrap()
                    .done_at;
                let mut back = [0; 8192];
                at = device.read(at, start, &mut back).unwrap().done_at;
                assert_eq!(content, back);
            }
            at = device.flush(at).unwrap().done_at;
            device.model().check().unwrap();
            let mut before = vec![0; 64 << 18];
            at = device.read(at, Sector(0), &mut before).unwrap().done_at;
            device.cut(at, Keep::None).unwrap();
            at = device.power_on(at);
            device.model().check().unwrap();
            let mut after = vec![0; 64 << 18];
            at = device.read(at, Sector(0), &mut after).unwrap().done_at;
            assert!(before == after);
        }
        at = device.discard(at, Sector(0), 64 << 11).unwrap().done_at;
        device.advance(at).unwrap();
        device.model().check().unwrap();
        assert_eq!(*device.medium(), MemoryMedium::new());
    }
}

# MobiFS for Nix: `nix-build dist/nix -A mobifs` (or callPackage from an overlay).
{ lib, rustPlatform }:

let
  manifest = lib.importTOML ../../Cargo.toml;
in
rustPlatform.buildRustPackage {
  pname = "mobifs";
  version = manifest.workspace.package.version;

  # Lab and SQLite have outputs of their own: a device with a mount need not carry them.
  outputs = [ "out" "lab" "sqlite" ];

  src = lib.cleanSourceWith {
    src = ../..;
    filter = path: type: !(type == "directory" && baseNameOf path == "target");
  };
  cargoLock.lockFile = ../../Cargo.lock;

  # Most tests mount; those of the pure crates do not.
  cargoTestFlags = [ "-p" "mobifs-engine" "-p" "mobifs-store" ];

  postBuild = ''
    binaries=$(echo target/*/release)
    $binaries/mobifs-manuals target/manuals
  '';

  installPhase = ''
    runHook preInstall
    install="BUILD=$binaries MANUALS=target/manuals"
    # mount(8) of NixOS looks for helpers in the system's path.
    make install $install PREFIX=$out HELPERDIR=$out/bin SHARED_HELPER=no
    make install-lab $install PREFIX=$lab
    make install-sqlite $install PREFIX=$sqlite
    runHook postInstall
  '';

  meta = {
    description = "Memory-speed storage over the filesystem you have";
    homepage = "https://github.com/mobifs/mobifs";
    license = with lib.licenses; [ mit asl20 ];
    platforms = lib.platforms.linux;
    mainProgram = "mobifs";
  };
}

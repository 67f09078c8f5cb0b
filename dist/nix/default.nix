{ pkgs ? import <nixpkgs> { } }:

{
  mobifs = pkgs.callPackage ./package.nix { };
}

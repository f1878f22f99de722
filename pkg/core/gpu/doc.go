// Package gpu holds the words that every part of gpumem speaks: units, devices,
// the inventory of a node and the IDs under which the kubelet accounts for units.
//
// # Invariants
//
//   - A device is identified by its UUID, everywhere. The index is for people:
//     it may change with a reboot.
//
//   - Memory is counted in Units. One unit is Inventory.UnitMiB MiB; the devices
//     of a node share the unit and may differ in everything else.
//
//   - Where a node offers its GPUs in shares, a unit is a tenth of its device instead
//     (Device.ShareMiB), and the inventory has no unit.
//
//   - A slot is one unit of one device, or one per cent of its cores, as the
//     kubelet sees it. Its ID names the device, so that a list of IDs is an
//     assignment without any other record.
//
//   - Whether a GPU takes new pods is a Status, a value that programs compare. The words for
//     people are made of it (package reasons), and no program reads them.
//
// # Decisions
//
// Units are signed. A GPU can shrink below what it has given away (a GPU is
// replaced, the unit grows), and an unsigned remainder would then wrap to an
// endless amount of free memory.
//
// Shares are units. Each device of a node with shares has ten, and all that counts units, fits, ranks,
// preempts and hands out goes on as it is: what a unit is in MiB matters to who sets limits and prints
// amounts. A request is in shares or not (placement.Request), and a node of the other kind refuses it,
// so the two are never added up. The cores of a share are not counted: who has three tenths of a
// GPU's units has three tenths of its cores. A unit per device was chosen over a unit per node since
// the GPUs of one node may differ, and over a resource for each size since pods must not know sizes.
//
// Slot IDs carry eight hexadecimal digits of the UUID instead of the index,
// because the kubelet keeps them over a reboot, and instead of the whole UUID,
// because it receives all of them in one message of 4 MiB at most.
//
// The package imports the standard library only, as do placement, ranking,
// preemption, cache, allocation, defrag and inspect: they can be tested, fuzzed
// and simulated without a cluster, a GPU or a clock.
package gpu

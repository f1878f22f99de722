// Package linux holds what a test cluster needs of the kernel: namespaces,
// processes in them, networks between them, control groups.
//
// A set of namespaces is kept by an anchor, a process that does nothing, and
// named by it. There are no files to unmount and no names to delete: when
// the last process in the namespaces has ended, the kernel takes away the
// namespaces, and the mounts and the network interfaces in them. And when the
// anchor ends, which is the first process of a process namespace, the kernel
// kills the others.
package linux

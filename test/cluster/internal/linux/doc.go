// Package linux holds what a test cluster needs of the kernel: namespaces,
// processes in them, networks between them, control groups.
//
// A set of namespaces is kept by an anchor, a process that does nothing, and
// named by it. When it ends, which is the first process of a process namespace, the
// kernel kills the others, and takes away the namespaces with their mounts and interfaces.
package linux

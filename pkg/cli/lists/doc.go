// Package lists has the commands gpus, pods, top and namespaces. Each prints a row for every GPU, pod or
// namespace.
//
// # Invariants
//
//   - The device plugins measure used memory. The commands compute allocated memory from the pods, as the scheduler
//     does. They read the two amounts separately, and print one even if the other is missing.
//   - If no pod matches a name in the arguments, the commands report a problem.
//
// # Decisions
//
// The commands pods and top are one list with different columns, so users select pods in the same way.
package lists

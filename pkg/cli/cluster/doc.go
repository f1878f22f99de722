// Package cluster reads a cluster for the commands: nodes and pods as the scheduler's cache counts them,
// gpumem's own pods, the policy and the records of its extender, and the usage that the device plugins
// measure.
//
// # Invariants
//
//   - The package changes nothing in the cluster.
//   - Package reach derives the facts about nodes and waiting pods. The page and the metrics use the
//     same functions.
//   - A list that cannot be read becomes a problem in the answer, and never counts as empty. Without
//     nodes there is nothing to show, so a failed list of nodes is an error, unless the command can
//     answer from the pods of one namespace (see AccessLimits).
//   - A pod belongs to gpumem only if it is in gpumem's namespace and a DaemonSet or Deployment there
//     created it. Labels prove nothing, because anybody may set them.
//   - The package limits the size of responses from gpumem's pods.
//
// # Decisions
//
// The package reads lists page by page and stores little of each pod, because a cluster may have many
// pods that do not matter here. If the token of a page expires, it reads the list again without pages.
//
// State reads the same lists for the doctor. It stores whole objects, because checks use more fields
// than Load stores.
//
// The page does not use this package. It gets the objects from the extender's watch, because browsers
// poll it every two seconds.
package cluster

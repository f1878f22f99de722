// Package cluster reads a cluster for the commands: nodes and pods as the scheduler caches them, gpumem's own pods,
// the scheduler's policy and its records of decisions, and the usage that the device plugins measure. The scheduler
// is gpumem-scheduler or gpumem-extender.
//
// # Invariants
//
//   - The package changes nothing in the cluster.
//   - Package nodefilter derives the facts about nodes and waiting pods. The web page and the metrics use the
//     same functions of nodefilter.
//   - An unreadable list becomes a problem in the answer, and no command treats it as empty. An unreadable list of
//     nodes is an error, because then there is nothing to show, except for commands that answer from the pods of one
//     namespace (see AccessLimits).
//   - A pod belongs to gpumem only if it is in gpumem's namespace and a DaemonSet or Deployment there
//     created it. Labels prove nothing, because anybody may set them.
//   - The package limits the size of responses from gpumem's pods.
//
// # Decisions
//
// The package reads lists page by page and stores little of each pod, because a cluster may have many
// pods without GPU memory. If the token of a page expires, the package reads the list again without pages.
//
// Method State reads the same lists for the command doctor. It stores whole objects, because doctor's checks
// use more fields than Load stores.
//
// The web page does not use this package. It gets the objects from the scheduler's watch, because browsers poll the
// page every two seconds.
package cluster

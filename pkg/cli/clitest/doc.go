// Package clitest has objects of clusters for the tests of the commands: nodes with GPU memory,
// pods that ask for it, and gpumem's own Deployments, DaemonSets and pods. It is imported by tests
// alone.
package clitest

// Command gpumem-scheduler is kube-scheduler with the plugin GPUMemory in it.
package main

import (
	"os"
	"runtime/debug"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of the API client
	_ "k8s.io/component-base/metrics/prometheus/version"  // metric of the build
)

// gcPercent is the default of GOGC. Hints save more processor time than the additional collections
// cost, and the heap takes three tenths less memory than with Go's default of 100.
const gcPercent = 40

// version is set by the linker.
var version = "dev"

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	os.Exit(cli.Run(newCommand()))
}

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

// version is set by the linker.
var version = "dev"

// gcPercent is the garbage collector's target (GOGC) if the environment sets none. gpumem needs less processor
// time than kube-scheduler alone but stores more per node and pod, so it collects garbage earlier than by
// default.
const gcPercent = 70

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	os.Exit(cli.Run(newCommand()))
}

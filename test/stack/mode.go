package stack

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// modeVariable is the environment variable with the scheduler.mode in which gpumem is
// installed, of this checkout and of releases that have it. Unset: the chart's default.
const modeVariable = "GPUMEM_SCHEDULER_MODE"

// The programs that place pods, and the modes in which they do.
const (
	extender = "gpumem-extender"
	plugin   = "gpumem-scheduler"

	devicePlugin = "gpumem-device-plugin"

	modeExtender = "extender"
	modePlugin   = "plugin"
)

func mode() (string, error) {
	mode := os.Getenv(modeVariable)
	if !slices.Contains([]string{"", modeExtender, modePlugin}, mode) {
		return "", fmt.Errorf("%s is %q: want %s, %s or nothing", modeVariable, mode, modeExtender, modePlugin)
	}
	return mode, nil
}

// hasPlugin reports whether the sources have gpumem-scheduler.
func (s *Stack) hasPlugin() bool {
	_, err := os.Stat(filepath.Join(s.root, "cmd", plugin, "go.mod"))
	return err == nil
}

// Plugin reports whether Install installs gpumem-scheduler, and not kube-scheduler with the
// extender.
func (s *Stack) Plugin() bool { return s.mode != modeExtender && s.hasPlugin() }

// Decider is the program, and the container, that decides where pods go.
func (s *Stack) Decider() string {
	if s.Plugin() {
		return plugin
	}
	return extender
}

// Scheduler is the program, and the container, in which kube-scheduler's queue is.
func (s *Stack) Scheduler() string {
	if s.Plugin() {
		return plugin
	}
	return "kube-scheduler"
}

// SchedulerPrograms are those of one of the scheduler's pods, each in a container of its name.
func (s *Stack) SchedulerPrograms() []string {
	return slices.Compact([]string{s.Scheduler(), s.Decider()})
}

// OtherMode is the mode that Install does not take.
func (s *Stack) OtherMode() string {
	if s.Plugin() {
		return modeExtender
	}
	return modePlugin
}

// Values are what each installation is given of the chart's values: one replica of the
// scheduler's pod is enough for most tests.
func (s *Stack) Values() []string {
	values := []string{"scheduler.replicas=1"}
	if s.mode != "" {
		values = append(values, "scheduler.mode="+s.mode)
	}
	return values
}

package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/node/cdi"
	"github.com/gpumem/gpumem/pkg/node/coexist"
	"github.com/gpumem/gpumem/pkg/node/deviceplugin"
	"github.com/gpumem/gpumem/pkg/node/enforcement"
	"github.com/gpumem/gpumem/pkg/node/render"
	"github.com/gpumem/gpumem/pkg/node/speeds"
)

// config contains the parsed flags.
type config struct {
	options

	names      api.Names
	devices    coexist.Selector
	speeds     speeds.Tables
	ignoreXIDs []uint64
	mode       enforcement.Mode
	plugin     deviceplugin.Config
}

// config parses the flags. It returns all errors at once.
func (o options) config() (config, error) {
	c := config{options: o, plugin: deviceplugin.DefaultConfig(o.nodeName)}
	var m mistakes
	m.require(o.nodeName != "", "node-name", "is not set, nor is NODE_NAME")
	c.names = read(&m, "resource-domain", api.NewNames, o.domain)
	c.names.LabelPods = o.labelPods
	c.devices = read(&m, "devices", coexist.ParseSelector, o.devices)
	m.require(o.unitMiB >= 1, "unit-mib", "%d, want 1 or more", o.unitMiB)
	m.require(o.reserveMiB >= 0, "reserve-mib", "%d, want 0 or more", o.reserveMiB)
	c.speeds = read(&m, "gpu-speeds", speeds.Read, o.gpuSpeeds)
	m.require(o.probeInterval >= time.Second, "probe-interval", "%s, want 1s or more", o.probeInterval)
	c.ignoreXIDs = read(&m, "ignore-xids", parseXIDs, o.ignoreXIDs)
	m.require(o.unassigned == unassignedPlace || o.unassigned == unassignedRefuse, "unassigned", "%q, want place or refuse", o.unassigned)
	c.plugin.Policy = read(&m, "policy", api.ParseFallback, o.policy)
	c.plugin.Containers.Strategy = read(&m, "device-list-strategy", render.ParseStrategy, o.strategy)
	c.plugin.Containers.Frameworks = read(&m, "framework-env", render.ParseFrameworks, o.frameworkEnv)
	c.mode = read(&m, "enforcement", enforcement.ParseMode, o.enforcement)
	m.require(filepath.IsAbs(o.mpsDir), "mps-dir", "%q, want an absolute path: containers see it too", o.mpsDir)
	m.require(o.onOveruse == overuseWarn || o.onOveruse == overuseEvict, "on-overuse", "%q, want warn or evict", o.onOveruse)
	m.require(o.toleranceMiB >= 0, "overuse-tolerance-mib", "%d, want 0 or more", o.toleranceMiB)
	m.require(o.kubeletDir != "", "kubelet-dir", "is empty")
	c.kubeletRootDir = cmp.Or(o.kubeletRootDir, o.kubeletDir)
	m.require(!o.claims || filepath.IsAbs(c.kubeletRootDir), "kubelet-root-dir", "%q, want an absolute path: the kubelet sees it too", c.kubeletRootDir)
	const want = "%q, want an absolute path: the container runtime sees it too"
	m.require(!o.claims && o.cdiHook == "" || filepath.IsAbs(o.cdiDir), "cdi-dir", want, o.cdiDir)
	if o.cdiHook != "" {
		m.require(filepath.IsAbs(o.cdiHook), "cdi-hook", want, o.cdiHook)
		m.require(filepath.IsAbs(o.cdiNodeRoot), "cdi-driver-root-on-node", want, o.cdiNodeRoot)
		c.plugin.Containers.CDIKind = cdi.Kind(o.domain)
	}
	_, _, err := net.SplitHostPort(o.probeListen)
	m.check("probe-listen", err)
	c.plugin.PlaceUnassigned = o.unassigned == unassignedPlace
	c.plugin.Coreless = !o.cores
	c.plugin.Containers.MPSDir = o.mpsDir
	return c, errors.Join(append(m, o.kube.Validate(), o.log.Validate())...)
}

// mistakes collects errors in flags.
type mistakes []error

func (m *mistakes) check(flag string, err error) {
	if err != nil {
		*m = append(*m, fmt.Errorf("--%s: %w", flag, err))
	}
}

func (m *mistakes) require(ok bool, flag, format string, args ...any) {
	if !ok {
		m.check(flag, fmt.Errorf(format, args...))
	}
}

// read parses the value of a flag, and reports an error to m.
func read[T any](m *mistakes, flag string, parse func(string) (T, error), value string) T {
	out, err := parse(value)
	m.check(flag, err)
	return out
}

func parseXIDs(list string) ([]uint64, error) {
	var out []uint64
	for s := range strings.SplitSeq(list, ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		xid, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q: want numbers with commas between them", list)
		}
		out = append(out, xid)
	}
	return out, nil
}

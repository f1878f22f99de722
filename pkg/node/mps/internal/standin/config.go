package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// configure reads as much of TOML as the supervisor writes, and takes nothing else.
func (d *daemon) configure(text string) error {
	d.namespaces.of = make(map[string]*namespace)
	section, seen := "", make(map[string]bool)
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if inner, ok := strings.CutPrefix(line, "["); ok {
			section = strings.TrimSuffix(inner, "]")
			if name := d.sectionOf(section); name != "" {
				d.namespaces.of[name] = &namespace{terms: terms{percent: 100, limits: make(map[string]string)}}
			}
			continue
		}
		key, value, ok := strings.Cut(line, " = ")
		switch {
		case line == "":
		case !ok:
			return fmt.Errorf("line %q", line)
		case d.sectionOf(section) != "":
			if err := d.namespaces.of[d.sectionOf(section)].set(key, strings.Trim(value, `"`)); err != nil {
				return err
			}
		default:
			seen[section+"/"+line] = true
		}
	}
	for _, want := range []string{`/schema_version = "1.0"`, "features.memacct/enabled = true"} {
		if !seen[want] {
			return fmt.Errorf("no %q", want)
		}
	}
	if _, ok := d.namespaces.of["default"].limits["all"]; !ok {
		return errors.New("a server whose default namespace has no limit")
	}
	return nil
}

// sectionOf returns the namespace that a section of the configuration is about.
func (d *daemon) sectionOf(section string) string {
	if section == "servers."+serverName {
		return "default"
	}
	name, _ := strings.CutPrefix(section, "servers."+serverName+".namespaces.")
	if name == section {
		return ""
	}
	return name
}

func (n *namespace) set(key, value string) error {
	switch key {
	case "pinned_memory_limit", "--pinned-memory-limit":
		if amount, ok := strings.CutSuffix(value, "M"); !ok || !positive(amount) {
			return fmt.Errorf("Invalid limit %q", value)
		}
		n.limits["all"] = value
	case "active_thread_percentage", "--active-thread-percentage":
		if !positive(value) {
			return fmt.Errorf("Invalid percentage %q", value)
		}
		n.percent, _ = strconv.ParseFloat(value, 64)
	default:
		return fmt.Errorf("Unknown key %q", key)
	}
	return nil
}

func positive(s string) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n > 0
}

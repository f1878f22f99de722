package release

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// licencesFile has the licences of what a program was linked from: most of them ask that
// their text goes with the program.
const licencesFile = "THIRD-PARTY-LICENSES"

// A sentence of each licence that is accepted. All of them allow to give away programs
// together with the text of the licence, and ask for no more.
func accepted() map[string]string {
	return map[string]string{
		"Apache-2.0": "apache license version 2.0",
		"MIT":        "permission is hereby granted, free of charge, to any person obtaining a copy",
		"BSD":        "redistribution and use in source and binary forms",
		"ISC":        "permission to use, copy, modify, and/or distribute this software for any purpose",
	}
}

// licenceOf returns the name of an accepted licence, or "".
func licenceOf(text []byte) string {
	words := strings.Join(strings.Fields(strings.ToLower(string(text))), " ")
	words = strings.ReplaceAll(words, "license, version", "license version")
	for _, name := range []string{"Apache-2.0", "MIT", "BSD", "ISC"} {
		if strings.Contains(words, accepted()[name]) {
			return name
		}
	}
	return ""
}

// licences writes the licences of the modules in a binary to a file, and returns its name.
// A module without a licence that is accepted is an error.
func (r *Release) licences(ctx context.Context, module, binary string, flags ...string) (file string, err error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return "", err
	}
	folders, err := moduleFolders(ctx, module, flags...)
	if err != nil {
		return "", err
	}
	out := bytes.NewBufferString("The program is linked from the following modules, and from Go's own library.\n")
	var refused []error
	add := func(name, dir string) error {
		texts, err := licenceTexts(dir)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(texts, func(text []byte) bool { return licenceOf(text) != "" }) {
			refused = append(refused, fmt.Errorf("%s: no licence in %s that is accepted", name, dir))
		}
		fmt.Fprintf(out, "\n=== %s\n\n%s\n", name, bytes.Join(texts, []byte("\n")))
		return nil
	}
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			dep = dep.Replace
		}
		dir := folders[dep.Path]
		if strings.HasPrefix(dep.Path, ".") {
			continue // ours, by its folder
		}
		if dir == "" {
			return "", fmt.Errorf("module %s: go list does not know where it is", dep.Path)
		}
		if err := add(dep.Path+" "+dep.Version, dir); err != nil {
			return "", err
		}
	}
	goroot, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", err
	}
	if err := add("Go "+info.GoVersion, strings.TrimSpace(string(goroot))); err != nil {
		return "", err
	}
	file = binary + "." + licencesFile
	return file, errors.Join(errors.Join(refused...), os.WriteFile(file, out.Bytes(), 0o644))
}

// licenceTexts returns what a module says of its licence, in the files in its folder that
// are named so.
func licenceTexts(dir string) (texts [][]byte, err error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		name := strings.ToUpper(f.Name())
		named := slices.ContainsFunc([]string{"LICENSE", "LICENCE", "COPYING", "NOTICE"}, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		if f.IsDir() || !named {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return nil, err
		}
		texts = append(texts, bytes.TrimSpace(text))
	}
	return texts, nil
}

// moduleFolders returns where the modules are that a module is built from.
func moduleFolders(ctx context.Context, module string, flags ...string) (map[string]string, error) {
	args := append([]string{"list", "-m", "-json=Path,Dir,Replace"}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, "all")...)
	cmd.Dir = module
	var said bytes.Buffer
	cmd.Stderr = &said
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s in %s: %w\n%s", cmd, module, err, said.Bytes())
	}
	out := make(map[string]string)
	for list := json.NewDecoder(bytes.NewReader(text)); ; {
		var m struct {
			Path, Dir string
			Replace   *struct{ Path, Dir string }
		}
		switch err := list.Decode(&m); {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return nil, err
		case m.Replace != nil:
			out[m.Replace.Path] = m.Replace.Dir
		default:
			out[m.Path] = m.Dir
		}
	}
}

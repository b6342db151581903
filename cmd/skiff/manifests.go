package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/skiff-k8s/skiff/cluster"
	"github.com/skiff-k8s/skiff/cluster/manifests"
)

func manifestsCommand() *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use: "manifests", Short: "Show what became of the files in the data directory's manifests folder", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := t.resolve(cmd); err != nil {
				return err
			}
			if _, err := cluster.Load(t.dir); err != nil {
				return err
			}
			p := cluster.Paths{Dir: t.dir}
			all, err := manifests.ReadStatus(p.ManifestsStatus())
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if len(all) == 0 {
				_, err := fmt.Fprintf(out, "no manifests; files put into %s are applied\n", p.Manifests())
				return err
			}
			var failed error
			w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "FILE\tSTATE\tAPPLIED\tSINCE")
			for _, s := range all {
				fmt.Fprintf(w, "%s\t%s\t%d/%d\t%s\n", s.File, s.State, s.Applied, s.Objects, s.Since.Local().Format("2006-01-02 15:04:05"))
			}
			if err := w.Flush(); err != nil {
				return err
			}
			for _, s := range all {
				if s.State != manifests.Applied {
					failed = errSaid
				}
				for _, e := range s.Errors {
					fmt.Fprintln(out, strings.TrimSpace(e))
				}
			}
			return failed
		},
	}
	t.flags(cmd)
	return cmd
}

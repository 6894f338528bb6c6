"""Grafana dashboards of `deploy/grafana`, from one table of panels."""

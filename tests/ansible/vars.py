#!/usr/bin/env python3
"""The role's variables for a whole configuration of the agent: vars.py CONFIG.yaml. The rule is the role's: monky_deployd_ and the key, with _ for each dot."""

import json
import sys

import yaml


def variables(keys, prefix):
    for key, value in keys.items():
        if isinstance(value, dict):
            yield from variables(value, f"{prefix}{key}_")
        else:
            yield f"{prefix}{key}", value


with open(sys.argv[1], encoding="utf-8") as file:
    print(json.dumps(dict(variables(yaml.safe_load(file), "monky_deployd_")), indent=1))

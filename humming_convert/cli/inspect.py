"""`humming-convert inspect MODEL`: what is in it, and what each target could do with it."""

from __future__ import annotations

from humming_convert.cli import exits
from humming_convert.cli import options as o
from humming_convert.cli.asides import check_places, write_page
from humming_convert.cli.say import print_findings, print_json

HELP = "Say what is in a checkpoint, and what each target could do with it."


def command(model: o.Model, html: o.HtmlFile = None, json: o.Json = False, verbose: o.Verbose = False) -> int:
    from humming_convert import api
    from humming_convert.cli.model import say_model

    check_places({"--html": html}, [model])
    say_model(model, quiet=json)
    found = api.inspect(model)
    if html is not None:
        from humming_convert.report.inspection import report_inspection

        write_page(html, report_inspection(found))
    code = exits.code_of(found.errors, exits.REFUSED) if found.errors else exits.DONE
    if json:
        print_json(found.document())
        return code
    print(found.text(verbose=verbose))
    print_findings(found.others, verbose=verbose)
    return code

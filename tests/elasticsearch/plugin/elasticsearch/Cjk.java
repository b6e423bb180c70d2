package memoryzoo;

import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.analysis.cjk.CJKAnalyzer;
import org.elasticsearch.plugin.NamedComponent;
import org.elasticsearch.plugin.analysis.AnalyzerFactory;

/** The analyzer `cjk` of a full distribution, which is Lucene's own. */
@NamedComponent("cjk")
public class Cjk implements AnalyzerFactory {
    @Override
    public String name() {
        return "cjk";
    }

    @Override
    public Analyzer create() {
        return new CJKAnalyzer();
    }
}

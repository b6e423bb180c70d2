package memoryzoo;

import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.analysis.en.EnglishAnalyzer;
import org.elasticsearch.plugin.NamedComponent;
import org.elasticsearch.plugin.analysis.AnalyzerFactory;

/** The analyzer `english` of a full distribution, which is Lucene's own. */
@NamedComponent("english")
public class English implements AnalyzerFactory {
    @Override
    public String name() {
        return "english";
    }

    @Override
    public Analyzer create() {
        return new EnglishAnalyzer();
    }
}
